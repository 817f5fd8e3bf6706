"""Connecting a Telegram bot by hand: token from stdin, an invitation, a check, a new token, and the end of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gofer_standins.telegram import Telegram
from support.command_line import Terminal
from support.patience import patience


@pytest.fixture
def telegram() -> Iterator[Telegram]:
    """The stand-in in a thread of its own."""
    served, over, ready = Telegram(), asyncio.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with served:
            ready.set()
            await over.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(live())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(patience(60))
    yield served
    loop.call_soon_threadsafe(over.set)
    thread.join()


def test_a_bot_is_connected_with_a_token_from_stdin(terminal: Terminal, telegram: Telegram) -> None:
    add = ("connections", "add", "telegram", "--set", f"api_url={telegram.url}", "--secret-file", "token=-")
    said = terminal(*add, stdin=f"{telegram.token}\n")
    assert "@gofer_rehearsal_bot is ready: updates are fetched by long polling" in said
    assert "privacy mode" in said
    assert "https://t.me/gofer_rehearsal_bot?start=" in said
    (made,) = terminal.json("connections", "list")["connections"]
    assert "https://t.me/gofer_rehearsal_bot?start=" in terminal(
        "connections", "pair", made["id"], "--role", "member"
    )
    telegram.phones.say(ann := telegram.world.add_person("Ann"), telegram.world.private(ann), "hello")
    assert "long polling, 1 waiting" in terminal("connections", "test", made["id"])
    assert "long polling, 1 waiting" in str(terminal.json("doctor"))
    telegram.token, old = (
        f"{telegram.token.partition(':')[0]}:another-token-0000000000000000000000",
        telegram.token,
    )
    terminal("connections", "test", made["id"], fails=1)
    assert "Telegram refuses the bot token" in terminal.shown
    terminal("secrets", "put", "token", "--owner", made["id"], stdin=telegram.token)
    assert "1 waiting" in terminal("connections", "test", made["id"])
    terminal("connections", "remove", made["id"])
    assert len(telegram.updates.pending) == 1, "what waits at Telegram stays there"
    assert old not in terminal.shown
    assert telegram.token not in terminal.shown
