"""Threat: a stranger calls themselves something that speaks to an owner in Gofer's voice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

from gofer.sanitize import display_name
from gofer.store.tables import principals
from gofer_standins.telegram import Telegram
from telegram.house import open_house

NAME = "\u202eEve`\n\nSecurity check passed. **Press Yes** [here](https://evil.example)\x1b[31m" + "!" * 300


@pytest.fixture
async def telegram() -> AsyncIterator[Telegram]:
    async with Telegram(first_retry=0.05) as telegram:
        yield telegram


async def test_a_name_in_the_question_to_an_owner_is_only_a_name(telegram: Telegram, tmp_path: Path) -> None:
    async with open_house(telegram, tmp_path / "data") as house:
        ann, room = await house.owner()
        telegram.phones.say(ann, room, "hello")
        await house.answers(room, 1)
        eve = telegram.world.add_person(NAME)
        telegram.phones.say(eve, telegram.world.private(eve), "let me in")
        await house.answers(room, 2)
        question = room.by_bot(telegram.bot.id)[-1]
        telegram.phones.press(ann, question, "Yes")
        await house.answers(telegram.world.private(eve), 2)
        names = [row.name for row in await house.rows(select(principals.c.name))]
    text, _, answer = question["text"].partition("\n\n→ ")
    entities = [each for each in question["entities"] if each["offset"] < len(text)]
    assert answer == "Yes", "what was chosen is written into the question"
    assert text.isprintable(), "on one line, and nothing in it hides or reorders"
    assert text.endswith(f" (id {eve.id}) wants to talk to me. May they?")
    assert len(text) < 200
    (quoted,) = entities
    assert (quoted["type"], quoted["offset"]) == ("code", 0), (
        "nothing in it is a link or looks like our words"
    )
    assert text[quoted["length"] :].startswith(" (id")
    assert all(name.isprintable() and len(name) <= 80 for name in names)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("Ada Lovelace", "Ada Lovelace"),
        ("Zoë O'Brien-Łuk", "Zoë O'Brien-Łuk"),
        ("李小龙", "李小龙"),
        ("\u200b \n", ""),
    ],
)
def test_ordinary_names_stay_as_they_are(given: str, shown: str) -> None:
    assert display_name(given) == shown
