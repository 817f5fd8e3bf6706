"""The webhook door: what a malformed, repeated or forged push does, which is nothing."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gofer.store.tables import deliveries, jobs, messages
from gofer_standins.telegram import Telegram
from gofer_telegram import SECRET_HEADER
from telegram.captured import UPDATES, message
from telegram.captured import update as update_of
from telegram.house import House, open_house
from telegram.test_updates import changed, places


class Door:
    def __init__(self, house: House, http: httpx2.AsyncClient) -> None:
        self.house = house
        self.http = http

    async def push(self, body: Any, **headers: Any) -> int:
        connected = await self.house.platform.accounts.get(self.house.connection_id)
        given = {SECRET_HEADER: connected.account.secret("webhook_secret"), **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = str(connected.account.hook_url)
        sent = [
            (name.encode(), one if isinstance(one, bytes) else one.encode())
            for name, value in given.items()
            for one in (value if isinstance(value, list) else [value])
            if one is not None
        ]
        return (await self.http.post(url, content=content, headers=sent)).status_code


@pytest.fixture
async def door(telegram: Telegram, tmp_path: Path) -> AsyncIterator[Door]:
    async with open_house(telegram, tmp_path / "data", webhook=True) as house, httpx2.AsyncClient() as http:
        yield Door(house, http)


def spoiled(update: Any, number: int, chance: random.Random) -> Any:
    """An update with one thing in it removed, emptied, retyped or enlarged."""
    place = chance.choice(places(update))
    junk: Any = chance.choice([None, True, -1, 2**70, 1.5, "", "x" * 50_000, [], {}, [[]], {"id": "x"}])
    made = changed(update, place, junk, remove=chance.random() < 0.3)
    return {**made, "update_id": number} if "update_id" in made else made


async def test_what_comes_through_the_door(door: Door) -> None:
    house, telegram = door.house, door.house.telegram
    assert await door.push(message(text="hi"), **{SECRET_HEADER: "wrong"}) == 401
    assert await door.push(message(text="hi"), **{SECRET_HEADER: None}) == 401
    assert await door.push(message(text="hi"), **{SECRET_HEADER: "x" * 8000}) == 401
    assert await door.push(message(text="hi"), **{SECRET_HEADER: b"\xff\xfe"}) == 401
    right = (await house.platform.accounts.get(house.connection_id)).account.secret("webhook_secret")
    assert await door.push(message(text="hi"), **{SECRET_HEADER: [right, right]}) == 401
    assert await house.count(deliveries) == 0
    assert await door.push(b"[" * 100_000) == 400
    assert await door.push(b'{"update_id": 1, "message": {"text": "\\ud800"}}') == 400
    assert await door.push({"message": {"text": "no number"}}) == 400
    assert await door.push([]) == 400
    for number, (name, update) in enumerate(UPDATES.items()):
        assert await door.push({**update, "update_id": 1000 + number}) == 200, name
    assert await house.count(deliveries) == len(UPDATES)
    chance = random.Random(5)
    for number, name in enumerate([*UPDATES, *UPDATES]):
        status = await door.push(spoiled(update_of(name), 5000 + number, chance))
        assert status in (200, 400), name
    ann, chat = await house.owner("Owner")
    telegram.phones.say(ann, chat, "still there?")
    await house.answers(chat, 1)


async def test_the_same_update_twice_is_one_message(door: Door) -> None:
    house, telegram = door.house, door.house.telegram
    ann, chat = await house.owner()
    update = message(text="once", chat=chat.as_chat(), **{"from": ann.as_user()})
    assert [await door.push(update) for _ in range(3)] == [200, 200, 200]
    await house.answers(chat, 1)
    await house.settled()
    assert await house.count(messages, messages.c.event == "message") == 1
    assert await house.count(jobs, jobs.c.kind == "answer") == 1
    assert len(telegram.said(chat)) == 1


async def test_a_name_on_the_list_helps_nobody_else(telegram: Telegram, tmp_path: Path) -> None:
    known = telegram.world.add_person("Ann", "annlee")
    async with open_house(telegram, tmp_path / "data", members=[known.id]) as house:
        chat = telegram.world.private(known)
        telegram.phones.say(known, chat, "hello")
        await house.answers(chat, 1)
        liar = telegram.world.add_person("Ann", "annlee")
        other = telegram.world.private(liar)
        telegram.phones.say(liar, other, "hello")
        (line,) = await house.answers(other, 1)
        assert "do not know you" in line
