"""Telegram: from a message to the first visible sign and to the whole answer, on the stand-in, with an instant model.

The peer is python-telegram-bot with a trivial handler on the same stand-in: it stores nothing, so it is a floor.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.report import Row
from gofer.assembly import open_platform
from gofer.connecting import add_connection, set_up_connection
from gofer.people import let_in
from gofer.rehearsal.telegram import Chat, Telegram
from gofer.settings import Settings
from gofer.store.open import FIRST_WORKSPACE
from gofer.vault.secret import Secret

GROUP = "telegram"
PEER = "python-telegram-bot"
ENVIRONMENT = Path(".bench/telegram")
CHATS = 50

_PEER = """
import sys
from telegram.ext import Application, MessageHandler, filters

async def answer(update, context):
    await update.message.reply_text("I heard: " + update.message.text)

token, url = sys.argv[1:]
app = Application.builder().token(token).base_url(url + "/bot").concurrent_updates(True).build()
app.add_handler(MessageHandler(filters.TEXT, answer))
app.run_polling()
"""


async def main(quick: bool) -> list[Row]:
    """The figures."""
    rounds = 10 if quick else 40
    async with Telegram() as telegram, _gofer(telegram):
        first, whole = await _one_by_one(telegram, rounds)
        together = await _together(telegram)
    peer = await _peer(rounds)
    peer_one, peer_together = peer if peer is not None else (None, None)
    return [
        Row(GROUP, "message to first visible sign, p50", first * 1000, "ms", PEER, peer_one, at_most=3),
        Row(GROUP, "message to the whole answer, p50", whole * 1000, "ms", PEER, peer_one, at_most=8),
        Row(GROUP, f"{CHATS} chats at once, all answered", together * 1000, "ms", PEER, peer_together),
    ]


@asynccontextmanager
async def _gofer(telegram: Telegram) -> AsyncIterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder) / "data", sandbox="off")
        async with open_platform(settings, roles=frozenset({"worker"})) as platform:
            connection_id = await platform.database.write(
                partial(
                    add_connection,
                    vault=platform.vault,
                    workspace_id=FIRST_WORKSPACE,
                    integration=platform.registry.get("telegram"),
                    name="bench",
                    settings={"api_url": telegram.url},
                    secrets_given={"token": Secret(telegram.token)},
                    by="bench",
                )
            )
            await platform.reload_secrets()
            await set_up_connection(platform.database, platform.accounts, connection_id)
            for number in range(CHATS + 1):
                person = telegram.world.add_person(f"Person {number}")
                telegram.world.private(person)
                await platform.database.write(
                    partial(
                        let_in,
                        workspace_id=FIRST_WORKSPACE,
                        integration="telegram",
                        subject=str(person.id),
                        name=person.first_name,
                        role="owner",
                        by="bench",
                    )
                )
            await platform.database.write(platform.start_inflow)
            yield


def _say(telegram: Telegram, chat: Chat) -> None:
    assert chat.person is not None
    telegram.phones.say(chat.person, chat, "hello")


def _complete(telegram: Telegram, chat: Chat) -> int:
    return sum(not text.endswith(" …") for text in telegram.said(chat))


async def _until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "no answer within a minute"
        await asyncio.sleep(0.0005)


async def _one_by_one(telegram: Telegram, rounds: int) -> tuple[float, float]:
    """Median seconds to the first sign (a reaction, typing or words), and to the whole answer."""
    chat = next(iter(telegram.world.chats.values()))
    first, whole = [], []
    for number in range(rounds):
        began = time.perf_counter()
        signs = len(chat.reactions) + len(chat.actions) + len(telegram.said(chat))
        _say(telegram, chat)
        await _until(lambda: len(chat.reactions) + len(chat.actions) + len(telegram.said(chat)) > signs)  # noqa: B023
        first.append(time.perf_counter() - began)
        await _until(lambda: _complete(telegram, chat) > number)  # noqa: B023
        whole.append(time.perf_counter() - began)
    return statistics.median(first), statistics.median(whole)


async def _together(telegram: Telegram) -> float:
    chats = list(telegram.world.chats.values())[1 : CHATS + 1]
    began = time.perf_counter()
    for chat in chats:
        _say(telegram, chat)
    await _until(lambda: all(_complete(telegram, chat) for chat in chats))
    return time.perf_counter() - began


async def _peer(rounds: int) -> tuple[float, float] | None:
    """The same with the peer, in milliseconds; None when it cannot be installed."""
    python = await asyncio.to_thread(_environment)
    if python is None:
        return None
    async with Telegram() as telegram:
        for number in range(CHATS + 1):
            telegram.world.private(telegram.world.add_person(f"Person {number}"))
        process = subprocess.Popen([str(python), "-c", _PEER, telegram.token, telegram.url])
        try:
            await _until(lambda: telegram.calls("getUpdates"))
            _, whole = await _one_by_one(telegram, rounds)
            return whole * 1000, await _together(telegram) * 1000
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


def _environment() -> Path | None:
    python = ENVIRONMENT / "bin" / "python"
    uv = shutil.which("uv")
    make = [uv, "venv", "-q", str(ENVIRONMENT)] if uv else [sys.executable, "-m", "venv", str(ENVIRONMENT)]
    pip = (
        [uv, "pip", "install", "-q", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-q"]
    )
    try:
        if not (ENVIRONMENT / "ready").exists():
            subprocess.run(make, check=True, capture_output=True)
            subprocess.run([*pip, PEER], check=True, capture_output=True)
            (ENVIRONMENT / "ready").touch()
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{PEER} cannot be installed here, so there is no reference: {error}", file=sys.stderr)
        return None
    return python
