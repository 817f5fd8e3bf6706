"""Restarts: Gofer in a process of its own, ended as by a power cut at the worst moments, on the stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gofer.rehearsal.telegram import Chat, Limits, Telegram
from telegram.house import Process


class Watch:
    """What was said to the bot, what Gofer's own books say became of it, and what people see."""

    def __init__(self, telegram: Telegram, data_dir: Path, people: int) -> None:
        self.telegram = telegram
        self.data_dir = data_dir
        self.people = [telegram.world.add_person(f"Person {number}") for number in range(people)]
        self.chats: list[Chat] = [telegram.world.private(person) for person in self.people]
        self.asked = 0

    def say(self, chat: Chat) -> None:
        self.asked += 1
        assert chat.person is not None
        self.telegram.phones.say(chat.person, chat, f"message {self.asked}")

    def books(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data_dir}/gofer.db?mode=ro", uri=True)) as books:
            return books.execute(query, values).fetchall()

    def all_answered(self) -> bool:
        (taken,) = self.books("SELECT count(*) FROM message WHERE event = 'message'")[0]
        busy = "state IN ('ready','running','scheduled','blocked') AND kind NOT IN ('poll','set_up')"
        (live,) = self.books(f"SELECT count(*) FROM job WHERE {busy}")[0]
        return bool(taken == self.asked and live == 0)

    def orphans(self) -> int:
        return sum(text.endswith(" …") for chat in self.chats for text in self.telegram.said(chat))

    def check(self, kills: int) -> None:
        """Each message is covered by exactly one complete reply, in order; at most one orphan per kill."""
        for chat in self.chats:
            self._check_chat(chat)
        assert self.orphans() <= kills

    def _check_chat(self, chat: Chat) -> None:
        query = """SELECT m.seq FROM message m JOIN binding b USING (conversation_id)
                   WHERE b.ref = ? AND m.event = 'message' ORDER BY m.seq"""
        said = [seq for (seq,) in self.books(query, str(chat.id))]
        query = """SELECT j.covers_from, j.covers_to, r.external_id FROM job j JOIN binding b USING (conversation_id)
                   JOIN reply r ON r.job_id = j.id AND r.kind = 'final' AND r.state = 'sent'
                   WHERE b.ref = ? AND j.kind = 'answer' ORDER BY j.id"""
        answers = self.books(query, str(chat.id))
        assert all(sum(first < seq <= last for first, last, _ in answers) == 1 for seq in said)
        complete = [
            message["message_id"]
            for message in chat.by_bot(self.telegram.bot.id)
            if not message["text"].endswith(" …")
        ]
        assert complete == [int(id_.rpartition(":")[2]) for *_, id_ in answers]


@pytest.mark.parametrize(
    ("webhook", "points"),
    [
        (False, ["intake.committed", "outbox.placed_outside", "outbox.completed_outside"]),
        (True, ["intake.before_record", "run.answered", "outbox.placed"]),
    ],
    ids=["polling", "webhook"],
)
async def test_crashes_neither_lose_nor_double_an_answer(
    telegram: Telegram, tmp_path: Path, webhook: bool, points: list[str]
) -> None:
    watch = Watch(telegram, tmp_path / "data", people=2)
    async with Process(telegram, tmp_path / "data", webhook=webhook) as gofer:
        for point in points:
            await gofer.start(GOFER_CRASH_AT=f"{point}:2")
            for _ in range(2):
                for chat in watch.chats:
                    watch.say(chat)
            await telegram.until(lambda: gofer.died, within=60)
            await gofer.kill()
            watch.say(watch.chats[0])
        await gofer.start()
        await telegram.until(watch.all_answered, within=60)
        await asyncio.sleep(0.3)
        await gofer.kill(signal.SIGTERM)
    watch.check(kills=len(points))


@pytest.mark.chaos
@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_chaos(tmp_path: Path, webhook: bool) -> None:
    """300 messages from 20 chats while the process is killed again and again."""
    chance = random.Random(7)
    fast = Limits(chat_burst=1000, per_second=1000)
    async with Telegram(first_retry=0.05, limits=fast) as telegram:
        watch = Watch(telegram, tmp_path / "data", people=20)
        kills = 0
        async with Process(telegram, tmp_path / "data", webhook=webhook) as gofer:
            await gofer.start()
            while watch.asked < 300:
                for _ in range(chance.randint(1, 12)):
                    if watch.asked < 300:
                        watch.say(chance.choice(watch.chats))
                    await asyncio.sleep(chance.uniform(0, 0.05))
                if chance.random() < 0.5:
                    await gofer.kill(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                    kills += 1
                    await gofer.start()
            await telegram.until(watch.all_answered, within=300)
            await asyncio.sleep(1)
            await gofer.kill(signal.SIGTERM)
        watch.check(kills)
        print(f"{watch.asked} messages, {kills} kills, {watch.orphans()} orphan openings")
