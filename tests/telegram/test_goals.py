"""Goals from a phone: asked for, shown in one message, steered by its buttons, reported once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.store.tables import goals, jobs, replies, showings, tasks
from gofer_standins.telegram import Chat, Telegram
from support.patience import eventually, patience
from telegram.house import House, open_house


def boards(house: House, chat: Chat) -> list[Any]:
    """The messages that show a goal."""
    return [m for m in chat.by_bot(house.telegram.bot.id) if str(m.get("text", "")).startswith("🎯")]


async def state(house: House) -> str:
    (row,) = await house.rows(select(goals.c.state))
    return str(row.state)


async def until_state(house: House, wanted: str) -> None:
    async def there() -> bool:
        return await state(house) == wanted

    await eventually(there)


async def test_a_goal_is_shown_in_one_message_and_reported_once(either: House) -> None:
    telegram = either.telegram
    ann, chat = await either.owner()
    telegram.phones.say(ann, chat, "/goal\n$ echo first > a; sleep 1; cat a\n$ cat a; echo second")
    shown = (await eventually(lambda: [m for m in boards(either, chat) if "echo second" in m["text"]]))[0]
    assert shown["message_id"] in chat.silent
    assert [b["text"] for b in shown["reply_markup"]["inline_keyboard"][0]] == ["Pause", "Cancel"]
    await until_state(either, "done")
    await either.settled()
    await eventually(lambda: not boards(either, chat))
    assert not await either.count(showings)
    (report,) = [text for text in telegram.said(chat) if "It cost" in text]
    assert "second" in report
    assert "without a language model" not in report, "what came of the tasks is the report"
    assert await either.count(replies, replies.c.kind == "final") == 1
    telegram.phones.say(ann, chat, "/goals")
    await eventually(lambda: any("2 of 2 tasks done" in text for text in telegram.said(chat)))


async def test_cancel_in_the_middle_of_a_command_stops_it(either: House) -> None:
    telegram = either.telegram
    ann, chat = await either.owner()
    telegram.phones.say(ann, chat, "/goal\n$ echo begun; sleep 60; echo over\n$ echo never")
    await _running(either)
    shown = (await eventually(lambda: [m for m in boards(either, chat) if "▶️" in m["text"]]))[0]
    ben, other = await either.owner("Ben")
    telegram.phones.say(ben, other, f"$ sleep {patience(2):.1f}; echo two seconds")
    pressed = telegram.phones.press(ann, shown, "Cancel")
    await eventually(lambda: pressed in telegram.methods.answered)
    await until_state(either, "cancelled")
    assert not any("two seconds" in text for text in telegram.said(other)), "what runs is stopped before that"
    await either.settled()
    states = [row.state for row in await either.rows(select(tasks.c.state).where(tasks.c.number > 0))]
    assert states == ["dropped", "dropped"]
    said = telegram.said(chat)
    (report,) = [text for text in said if "cancelled" in text and "It cost" in text] or [str(said)]
    assert "Not done" in report
    await eventually(lambda: not boards(either, chat))


async def test_a_paused_goal_lets_the_running_command_end_and_begins_nothing_more(either: House) -> None:
    telegram = either.telegram
    ann, chat = await either.owner()
    telegram.phones.say(ann, chat, "/goal\n$ sleep 1; echo one\n$ echo two")
    await _running(either)
    shown = (await eventually(lambda: [m for m in boards(either, chat) if "▶️" in m["text"]]))[0]
    telegram.phones.press(ann, shown, "Pause")
    await until_state(either, "paused")

    async def first_done() -> bool:
        found = await either.rows(select(tasks.c.state).where(tasks.c.number > 0).order_by(tasks.c.number))
        return [row.state for row in found] == ["done", "queued"]

    await eventually(first_done)
    shown = (await eventually(lambda: [m for m in boards(either, chat) if "resume" in m["text"]]))[0]
    assert [b["text"] for b in shown["reply_markup"]["inline_keyboard"][0]] == ["Resume", "Cancel"]
    telegram.phones.press(ann, shown, "Resume")
    await until_state(either, "done")


@pytest.mark.parametrize(
    ("choice", "state", "says"),
    [("Approve", "done", "approved"), ("Refuse", "cancelled", "refused the plan")],
)
async def test_work_begins_when_an_owner_presses_the_button_of_the_plan(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, state: str, says: str
) -> None:
    monkeypatch.setenv("GOFER_GOAL_APPROVAL", "true")
    async with open_house(telegram, tmp_path / "data", sandbox="unconfined", progress_after=0) as house:
        ann, chat = await house.owner()
        telegram.phones.say(ann, chat, "/goal\n$ echo approved > a; cat a")

        def asking() -> list[Any]:
            return [m for m in chat.by_bot(telegram.bot.id) if "Approve" in str(m.get("reply_markup"))]

        (asked,) = await eventually(asking)
        assert "echo approved" in asked["text"]
        assert "May I begin?" in asked["text"]
        await until_state(house, "blocked")
        begun = tasks.c.number > 0, tasks.c.job_id.is_not(None)
        assert not await house.rows(select(tasks.c.id).where(*begun)), "nothing runs before"
        pressed = telegram.phones.press(ann, asked, choice)
        await eventually(lambda: pressed in telegram.methods.answered)
        await until_state(house, state)
        await house.settled()
        assert not asking(), "the buttons are gone"
        (report,) = [text for text in telegram.said(chat) if "It cost" in text]
        assert says in report


async def test_a_strangers_goal_is_refused_politely_and_never_made(house: House) -> None:
    telegram = house.telegram
    mallory = telegram.world.add_person("Mallory")
    chat = telegram.world.private(mallory)
    telegram.phones.say(mallory, chat, "/goal sell the house")
    (said,) = await house.answers(chat, 1)
    assert "do not know you" in said or "not" in said
    await house.settled()
    assert not await house.count(goals)
    assert not await house.count(jobs, jobs.c.kind == "goal")


async def test_goals_are_steered_by_commands_and_only_where_they_are(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    ben, other = await house.owner("Ben")
    telegram.phones.say(ann, chat, "/goal")
    assert "Say what you want" in (await house.answers(chat, 1))[-1]
    telegram.phones.say(ann, chat, "/goal pause")
    assert "No goal is under way" in (await house.answers(chat, 2))[-1]
    telegram.phones.say(ann, chat, "/goal paint the shed, offline models cannot")
    await eventually(lambda: any("could not make a plan" in text for text in telegram.said(chat)))
    (row,) = await house.rows(select(goals.c.id))
    telegram.phones.say(ben, other, f"/goal cancel {row.id}")
    assert "There is no goal" in (await house.answers(other, 1))[-1]
    telegram.phones.say(ann, chat, "/goal cancel")
    await until_state(house, "cancelled")


async def _running(house: House) -> None:
    async def there() -> bool:
        return bool(
            await house.rows(select(tasks.c.id).where(tasks.c.number == 1, tasks.c.state == "running"))
        )

    await eventually(there)
