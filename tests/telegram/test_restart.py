"""Restarts: Gofer in a process of its own, ended as by a power cut at the worst moments, on the stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gofer.app import open_app
from gofer.jobs.control import redrive
from gofer.settings import Settings
from gofer_standins.anthropic import Anthropic, say
from gofer_standins.loopback import serve as loopback
from gofer_standins.telegram import Chat, Message, Person, SendRates, Telegram
from support.patience import eventually
from telegram.house import OWNERS, Process


@dataclass
class Talk:
    """Somebody who writes somewhere: in private, in a group, in a topic."""

    person: Person
    chat: Chat
    thread: int | None = None

    @property
    def ref(self) -> str:
        return str(self.chat.id) if self.thread is None else f"{self.chat.id}/{self.thread}"

    def answered(self, bot_id: int) -> list[Message]:
        """What the bot has said there."""
        return [said for said in self.chat.by_bot(bot_id) if said.get("message_thread_id") == self.thread]


class Watch:
    """What was said to the bot, what Gofer's own books say became of it, and what people see."""

    def __init__(self, telegram: Telegram, data_dir: Path, people: int) -> None:
        self.telegram = telegram
        self.data_dir = data_dir
        persons = [telegram.world.add_person(f"Person {number}") for number in range(people)]
        self.talks = [Talk(person, telegram.world.private(person)) for person in persons]
        self.asked = 0

    def say(self, talk: Talk) -> None:
        self.asked += 1
        self.telegram.phones.say(talk.person, talk.chat, f"message {self.asked}", thread=talk.thread)

    def books(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data_dir}/gofer.db?mode=ro", uri=True)) as books:
            return books.execute(query, values).fetchall()

    def all_answered(self) -> bool:
        """Whether everything was taken in and nobody is at anything."""
        busy = "state IN ('ready','running','scheduled','blocked') AND kind NOT IN ('poll','set_up')"
        return not self.telegram.updates.pending and self.books(f"SELECT count(*) FROM job WHERE {busy}")[
            0
        ] == (0,)

    def said(self, talk: Talk) -> list[str]:
        """The bot's complete messages somewhere."""
        texts = [said.get("text", "") for said in talk.answered(self.telegram.bot.id)]
        return [text for text in texts if not text.endswith(" …")]

    def orphans(self) -> int:
        chats = {talk.chat.id: talk.chat for talk in self.talks}
        return sum(text.endswith(" …") for chat in chats.values() for text in self.telegram.said(chat))

    def check(self) -> None:
        """Each message is covered by exactly one complete reply, in order."""
        query = "SELECT count(*) FROM message WHERE event = 'message'"
        assert self.books(query)[0] >= (self.asked,)
        for talk in self.talks:
            self._check(talk)

    def _check(self, talk: Talk) -> None:
        query = """SELECT m.seq FROM message m JOIN binding b USING (conversation_id)
                   WHERE b.ref = ? AND m.event = 'message' ORDER BY m.seq"""
        said = [seq for (seq,) in self.books(query, talk.ref)]
        query = """SELECT j.covers_from, j.covers_to, r.external_id FROM job j JOIN binding b USING (conversation_id)
                   JOIN reply r ON r.job_id = j.id AND r.kind = 'final' AND r.state = 'sent'
                   WHERE b.ref = ? AND j.kind = 'answer' ORDER BY j.id"""
        answers = self.books(query, talk.ref)
        assert all(sum(first < seq <= last for first, last, _ in answers) == 1 for seq in said)
        complete = [
            message["message_id"]
            for message in talk.answered(self.telegram.bot.id)
            if not message["text"].endswith(" …")
        ]
        assert complete == [int(id_.rpartition(":")[2]) for *_, id_ in answers]


class Everything:
    """All that can be under way with a bot when its process dies, each in a chat of its own."""

    def __init__(self, watch: Watch, telegram: Telegram) -> None:
        self.watch, self.telegram = watch, telegram
        world, phones = telegram.world, telegram.phones
        owners = [world.add_person(f"Owner {number}") for number in range(len(OWNERS) - len(watch.talks))]
        stranger = world.add_person("Stranger")
        self.asks, self.stops, self.album, self.gives, self.gets, *_ = (
            Talk(person, world.private(person)) for person in owners
        )
        self.pairs = Talk(stranger, world.private(stranger))
        forum = world.add_group("Forum", forum=True)
        topic = phones.open_topic(owners[0], forum, "One")
        watch.talks += [Talk(owners[0], world.add_group("Team")), Talk(owners[0], forum, topic)]
        telegram.methods.privacy = False
        self.groups = {str(talk.chat.id): {"when": "always", "everyone": True} for talk in watch.talks[-2:]}
        self.all = (self.asks, self.stops, self.album, self.gives, self.gets, self.pairs, *watch.talks)

    def write(self, talk: Talk, text: str) -> None:
        self.telegram.phones.say(talk.person, talk.chat, text)

    def button(self, talk: Talk, label: str) -> Message | None:
        """The bot's message that has a button."""
        found = (
            said for said in talk.chat.by_bot(self.telegram.bot.id) if label in str(said.get("reply_markup"))
        )
        return next(found, None)

    def press(self, talk: Talk, label: str) -> None:
        message = self.button(talk, label)
        assert message is not None
        self.telegram.phones.press(talk.person, message, label)

    async def begin(self) -> None:
        """A question that waits for its answer, a command that runs, a file to be asked for."""
        self.write(self.asks, '$tool ask_user {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}')
        self.write(self.stops, "$ sleep 30")
        self.write(self.gets, "$ echo words > words.txt")
        await eventually(
            lambda: (
                self.button(self.asks, "Coffee")
                and self.watch.books("SELECT job_id FROM showing WHERE ref = ?", self.stops.ref)
                and self.watch.said(self.gets)
            )
        )

    def go_on(self, code: str) -> None:
        """Everything else at once: files both ways, an album's beginning, a code, and talk in all places."""
        phones = self.telegram.phones
        self.mark = phones.send_album(self.album.person, self.album.chat, ["our garden", ""])[0][
            "media_group_id"
        ]
        phones.send_document(self.gives.person, self.gives.chat, "notes.txt", b"little words")
        self.write(self.gets, '$tool send_file {"path": "words.txt"}')
        self.write(self.pairs, f"/start {code}")

    def go_on_while_it_is_away(self) -> None:
        """The rest of the album, an answer and a stop, by buttons that outlive the process."""
        self.telegram.phones.send_photo(self.album.person, self.album.chat, media_group_id=self.mark)
        self.press(self.asks, "Coffee")
        self.press(self.stops, "Stop")

    def check(self, kills: int) -> None:
        """Each came to one end that its person sees."""
        said = self.watch.said
        question, answer = said(self.asks)
        assert "Tea or coffee?" in question
        assert "Coffee" in answer
        (stopped,) = said(self.stops)
        assert "Stopped" in stopped
        assert len(said(self.album)) == 1
        _, given = said(self.gives)
        assert "little words" in given, "the file is where it belongs"
        assert len([said for said in self.gets.chat.by_bot(self.telegram.bot.id) if "document" in said]) <= 1
        assert len([text for text in said(self.gets) if text]) == 2, "the echo, and what became of the file"
        (paired,) = said(self.pairs)
        assert "You are paired" in paired
        for talk in self.all:
            assert sum(text.endswith(" …") for text in self.telegram.said(talk.chat)) <= kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("webhook", "points"),
    [
        (False, ["intake.committed:2", "outbox.placed_outside:2", "outbox.completed_outside:2"]),
        (True, ["intake.before_record:2", "run.answered:2", "outbox.placed:2"]),
    ],
    ids=["polling", "webhook"],
)
async def test_a_restart_in_the_middle_of_everything_neither_loses_nor_doubles_anything(
    telegram: Telegram, tmp_path: Path, webhook: bool, points: list[str]
) -> None:
    watch = Watch(telegram, tmp_path / "data", people=2)
    rest = Everything(watch, telegram)
    async with Process(
        telegram,
        tmp_path / "data",
        webhook=webhook,
        sandbox="unconfined",
        groups=rest.groups,
        progress_after=0,
        reactions=False,
    ) as gofer:
        await gofer.start()
        await rest.begin()
        rest.go_on(gofer.code)
        await gofer.kill()
        rest.go_on_while_it_is_away()
        for point in points:
            for talk in watch.talks:
                watch.say(talk)
            await gofer.start(GOFER_CRASH_AT=point)
            for talk in watch.talks:
                watch.say(talk)
            await eventually(lambda: gofer.died, within=120)
            await gofer.kill()
        await gofer.start()
        await eventually(watch.all_answered, within=120)
        rest.write(rest.gives, "$ cat inbox/*notes.txt")
        await eventually(lambda: len(watch.said(rest.gives)) == 2 and watch.all_answered(), within=120)
        await gofer.kill(signal.SIGTERM)
    watch.check()
    rest.check(kills=len(points) + 1)


ANSWERS = ("Yes.", "No, never", "It was the butler, with the candlestick, in the library, at noon.")


@pytest.mark.slow
async def test_a_kill_right_after_an_opening_leaves_at_most_half_of_an_answer_behind(
    telegram: Telegram, tmp_path: Path
) -> None:
    model = Anthropic(
        lambda asked: say(ANSWERS[int(re.findall(r"message (\d)", str(asked["messages"]))[0]) - 1])
    )
    watch = Watch(telegram, tmp_path / "data", people=len(ANSWERS))
    async with loopback(model.app) as url, Process(telegram, tmp_path / "data", webhook=False) as gofer:
        key = {"GOFER_ANTHROPIC_KEY": model.key, "GOFER_ANTHROPIC_BASE_URL": url}
        for talk in watch.talks:
            await gofer.start(GOFER_CRASH_AT="outbox.placed_outside", **key)
            watch.say(talk)
            await eventually(lambda: gofer.died, within=120)
            await gofer.kill()
        await gofer.start(**key)
        await eventually(watch.all_answered, within=120)
        await gofer.kill(signal.SIGTERM)
    watch.check()
    for talk, answer in zip(watch.talks, ANSWERS, strict=True):
        *orphans, whole = telegram.said(talk.chat)
        assert whole == answer
        assert all(orphan.endswith(" …") for orphan in orphans)
        for own in (orphan.removesuffix(" …") for orphan in orphans):
            assert own == "One moment" or len(own.split()) <= len(answer.split()) / 2
    assert watch.orphans() == len(ANSWERS)


@pytest.mark.slow
async def test_a_reply_that_failed_is_told_once_and_redriven_once_whatever_is_killed(
    telegram: Telegram, tmp_path: Path
) -> None:
    watch = Watch(telegram, tmp_path / "data", people=1)
    (talk,) = watch.talks
    ann, hers = talk.person, talk.chat
    group = telegram.world.add_group("Team")
    groups: dict[str, Any] = {str(group.id): {}}
    dead = "SELECT id, reason FROM job WHERE kind = 'deliver' AND state = 'dead'"
    async with Process(telegram, tmp_path / "data", webhook=False, groups=groups) as gofer:
        await gofer.start()
        telegram.phones.say(ann, hers, "/help")
        await eventually(lambda: watch.said(talk))
        await gofer.kill()
        telegram.phones.say(ann, group, f"@{telegram.bot.username} hello")
        group.bot_is = "kicked"
        for point in ("outbox.begun", "job.concluding", "outbox.placed_outside"):
            await gofer.start(GOFER_CRASH_AT=point)
            await eventually(lambda: gofer.died, within=120)
            await gofer.kill()
        await gofer.start()
        await eventually(lambda: watch.books(dead) and watch.all_answered(), within=120)
        await gofer.kill()
        ((job, reason),) = watch.books(dead)
        assert reason == "kicked"
        (told,) = [text for text in watch.said(talk) if "could not be sent" in text]
        assert f"gofer jobs redrive {job}" in told
        group.bot_is = "member"
        async with open_app(Settings(data_dir=tmp_path / "data"), roles=frozenset()) as platform:
            await platform.database.write(partial(redrive, job_id=job, by="test"))
        for point in ("outbox.placed_outside", "outbox.completed_outside"):
            await gofer.start(GOFER_CRASH_AT=point)
            await eventually(lambda: gofer.died, within=120)
            await gofer.kill()
        await gofer.start()
        await eventually(watch.all_answered, within=120)
        await gofer.kill(signal.SIGTERM)
    assert watch.books(dead) == []
    assert [text.endswith(" …") for text in telegram.said(group)] == [True, False]
    assert len([text for text in watch.said(talk) if "could not be sent" in text]) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_chaos(tmp_path: Path, webhook: bool) -> None:
    """300 messages from 20 chats while the process is killed again and again."""
    chance = random.Random(7)
    fast = SendRates(chat_burst=1000, per_second=1000)
    async with Telegram(first_retry=0.05, limits=fast) as telegram:
        watch = Watch(telegram, tmp_path / "data", people=20)
        kills = 0
        async with Process(telegram, tmp_path / "data", webhook=webhook) as gofer:
            await gofer.start()
            while watch.asked < 300:
                for _ in range(chance.randint(1, 12)):
                    if watch.asked < 300:
                        watch.say(chance.choice(watch.talks))
                    await asyncio.sleep(chance.uniform(0, 0.05))
                if chance.random() < 0.5:
                    await gofer.kill(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                    kills += 1
                    await gofer.start()
            await eventually(watch.all_answered, within=300)
            await asyncio.sleep(1)
            await gofer.kill(signal.SIGTERM)
        watch.check()
        assert watch.orphans() <= kills
        print(f"{watch.asked} messages, {kills} kills, {watch.orphans()} orphan openings")
