"""Telegram: from a message to the first visible sign and to the whole answer, on the stand-in, with an instant model.

The peers, on the same stand-in: python-telegram-bot with a trivial handler, which stores nothing and so is a floor;
and nanobot, an agent like ours, with its own Telegram channel, its own loop and an instant model.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row
from gofer_standins.telegram import Chat, Telegram

GROUP = "telegram"
CHATS = 50

_PTB = """
import sys
from telegram.ext import Application, MessageHandler, filters

async def answer(update, context):
    await update.message.reply_text("I heard: " + update.message.text)

token, url = sys.argv[1:]
app = Application.builder().token(token).base_url(url + "/bot").concurrent_updates(True).build()
app.add_handler(MessageHandler(filters.TEXT, answer))
app.run_polling()
"""

_NANOBOT = """
import asyncio, sys, tempfile
from pathlib import Path
import telegram.ext._applicationbuilder as building
import tiktoken
from loguru import logger
from nanobot.agent.loop import AgentLoop
from nanobot.bus.queue import MessageBus
from nanobot.channels.telegram.runtime import TelegramChannel, TelegramConfig
from nanobot.providers.base import LLMProvider, LLMResponse
from telegram.ext import ExtBot

token, url = sys.argv[1:]
begin, send = building.ApplicationBuilder.__init__, ExtBot.send_message

def pointed(self, *given):
    begin(self, *given)
    self._base_url = url + "/bot"  # it knows no other address than Telegram's own

async def plain(self, *given, **named):
    named.pop("parse_mode", None)  # the stand-in takes entities; refused, each answer would be sent twice
    return await send(self, *given, **named)

def not_there(name):
    raise OSError(f"{name} is not there")  # it would try to download it in every turn; without, it estimates

class Instant(LLMProvider):
    async def chat(self, messages, tools=None, **more):
        return LLMResponse("I heard you.")
    def get_default_model(self):
        return "instant"

async def deliver(bus, channel):
    while True:
        await channel.send(await bus.consume_outbound())

async def main():
    logger.remove()
    tiktoken.get_encoding, building.ApplicationBuilder.__init__, ExtBot.send_message = not_there, pointed, plain
    with tempfile.TemporaryDirectory() as folder:
        bus = MessageBus()
        loop = AgentLoop(bus, Instant(provider_name="instant"), Path(folder), "instant")
        config = TelegramConfig(enabled=True, token=token, allow_from=["*"], streaming=False)
        channel = TelegramChannel(config, bus)
        await asyncio.gather(loop.run(), channel.start(), deliver(bus, channel))

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A bot of somebody else's, in an environment of its own under `.bench/`."""

    name: str
    packages: tuple[str, ...]
    script: str


PTB = Peer("python-telegram-bot", ("python-telegram-bot>=22.6,<23",), _PTB)
NANOBOT = Peer("nanobot", ("nanobot-ai==0.3.5", "python-telegram-bot[socks,webhooks]>=22.6,<23"), _NANOBOT)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds to the first sign, to the whole answer, and for all chats at once; None where not measured."""

    first: float | None = None
    whole: float | None = None
    together: float | None = None


async def main(quick: bool) -> list[Row]:
    """The figures."""
    rounds = 10 if quick else 40
    ours = await _bot([sys.executable, "-m", "benchmarks.telegram_ours"], Path.cwd(), rounds)
    floor, agent = await _peer(PTB, rounds), await _peer(NANOBOT, rounds)
    assert ours.first is not None
    assert ours.whole is not None
    assert ours.together is not None
    sign, answer, all_ = (
        "message to first visible sign, p50",
        "message to the whole answer, p50",
        f"{CHATS} chats at once, all answered",
    )
    return [
        # The floor's only sign is its answer.
        Row(GROUP, sign, ours.first, "ms", PTB.name, floor.whole),
        Row(GROUP, sign, ours.first, "ms", NANOBOT.name, agent.first, at_most=1),
        Row(GROUP, answer, ours.whole, "ms", PTB.name, floor.whole),
        Row(GROUP, answer, ours.whole, "ms", NANOBOT.name, agent.whole, at_most=1),
        Row(GROUP, all_, ours.together, "ms", PTB.name, floor.together),
        Row(GROUP, all_, ours.together, "ms", NANOBOT.name, agent.together, at_most=1),
    ]


async def _measured(telegram: Telegram, rounds: int) -> Times:
    first, whole = await _one_by_one(telegram, rounds)
    return Times(first * 1000, whole * 1000, await _together(telegram) * 1000)


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


async def _peer(peer: Peer, rounds: int) -> Times:
    """The same with a peer; nothing when it cannot be installed."""
    python = await asyncio.to_thread(_environment, peer)
    if python is None:
        return Times()
    with tempfile.TemporaryDirectory() as home:  # nothing of the user's settings, nothing left behind
        return await _bot([str(python), "-c", peer.script], Path(home), rounds, HOME=home)


async def _bot(command: list[str], folder: Path, rounds: int, **variables: str) -> Times:
    """One bot in a process of its own, as all of them are: none shares its interpreter with the stand-in."""
    async with Telegram() as telegram:
        for number in range(CHATS + 1):
            telegram.world.private(telegram.world.add_person(f"Person {number}"))
        process = subprocess.Popen(
            [*command, telegram.token, telegram.url], env={**os.environ, **variables}, cwd=folder
        )
        try:
            await _until(lambda: telegram.calls("getUpdates"))
            return await _measured(telegram, rounds)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


def _environment(peer: Peer) -> Path | None:
    place = Path(f".bench/telegram-{peer.name}").absolute()
    python, ready = place / "bin" / "python", place / "ready"
    uv = shutil.which("uv")
    make = [uv, "venv", "-q", str(place)] if uv else [sys.executable, "-m", "venv", str(place)]
    pip = (
        [uv, "pip", "install", "-q", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-q"]
    )
    try:
        if not ready.exists():
            subprocess.run(make, check=True, capture_output=True)
            subprocess.run([*pip, *peer.packages], check=True, capture_output=True)
            ready.touch()
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{peer.name} cannot be installed here, so there is no reference: {error}", file=sys.stderr)
        return None
    return python
