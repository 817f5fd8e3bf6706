"""Restarts: Gofer in a process of its own, ended as by a power cut at the worst moments, on the stand-in."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from pathlib import Path

import pytest

from gofer.rehearsal.telegram import Chat, Limits, Telegram
from telegram.house import Process


class Watch:
    """What was said to the bot, and what came back."""

    def __init__(self, telegram: Telegram, people: int) -> None:
        self.telegram = telegram
        self.people = [telegram.world.add_person(f"Person {number}") for number in range(people)]
        self.chats: list[Chat] = [telegram.world.private(person) for person in self.people]
        self.asked: dict[int, Chat] = {}

    def say(self, chat: Chat) -> None:
        number = len(self.asked) + 1
        self.asked[number] = chat
        assert chat.person is not None
        self.telegram.phones.say(chat.person, chat, f"$ echo m{number}.")

    def answered(self, chat: Chat) -> list[list[int]]:
        """The numbers each complete reply of a chat covers."""
        complete = [text for text in self.telegram.said(chat) if not text.endswith(" …")]
        return [sorted({int(n) for n in re.findall(r"\$ echo m(\d+)\.", text)}) for text in complete]

    def all_answered(self) -> bool:
        covered = {number for chat in self.chats for reply in self.answered(chat) for number in reply}
        return covered >= set(self.asked)

    def orphans(self) -> int:
        return sum(text.endswith(" …") for chat in self.chats for text in self.telegram.said(chat))

    def check(self, kills: int) -> None:
        """Each message is covered by exactly one complete reply, in order; at most one orphan per kill."""
        for chat in self.chats:
            numbers = [number for reply in self.answered(chat) for number in reply]
            mine = [number for number, asked_in in self.asked.items() if asked_in is chat]
            assert numbers == mine
        assert self.orphans() <= kills


@pytest.mark.parametrize(
    ("webhook", "point"),
    [
        (False, "intake.committed"),
        (False, "outbox.placed_outside"),
        (False, "outbox.completed_outside"),
        (True, "intake.before_record"),
        (True, "run.answered"),
        (True, "outbox.placed"),
    ],
)
async def test_a_crash_neither_loses_nor_doubles_an_answer(
    telegram: Telegram, tmp_path: Path, webhook: bool, point: str
) -> None:
    watch = Watch(telegram, people=2)
    gofer = Process(telegram, tmp_path / "data", webhook=webhook)
    await gofer.start(GOFER_CRASH_AT=f"{point}:2")
    for _ in range(2):
        for chat in watch.chats:
            watch.say(chat)
    await telegram.until(lambda: gofer.died, within=30)
    await gofer.kill()
    watch.say(watch.chats[0])
    await gofer.start()
    try:
        await telegram.until(watch.all_answered, within=40)
        await asyncio.sleep(0.3)
    finally:
        await gofer.kill(signal.SIGTERM)
    watch.check(kills=1)


@pytest.mark.chaos
@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_chaos(tmp_path: Path, webhook: bool) -> None:
    """300 messages from 20 chats while the process is killed again and again."""
    chance = random.Random(7)
    fast = Limits(chat_burst=1000, per_second=1000)
    async with Telegram(first_retry=0.05, limits=fast) as telegram:
        watch = Watch(telegram, people=20)
        gofer = Process(telegram, tmp_path / "data", webhook=webhook)
        await gofer.start()
        kills = 0
        while len(watch.asked) < 300:
            for _ in range(chance.randint(1, 12)):
                if len(watch.asked) < 300:
                    watch.say(chance.choice(watch.chats))
                await asyncio.sleep(chance.uniform(0, 0.05))
            if chance.random() < 0.5:
                await gofer.kill(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                kills += 1
                await gofer.start()
        try:
            await telegram.until(watch.all_answered, within=180)
            await asyncio.sleep(1)
        finally:
            await gofer.kill(signal.SIGTERM)
        watch.check(kills)
        print(f"{len(watch.asked)} messages, {kills} kills, {watch.orphans()} orphan openings")
