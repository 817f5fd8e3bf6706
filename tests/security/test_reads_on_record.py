"""Somebody who may look into other people's conversations: that they did is on record."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from support.web_server import House


@pytest.fixture
def talk(house: House) -> dict[str, Any]:
    """What ann said to the bot."""
    api = house.api(house.token(house.owner(), "admin"))
    new = {"integration": "hello", "name": "read", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    made = api.post("/connections", json={**new, "secrets": {"signing_key": "k" * 40}}).json()
    body = json.dumps({"id": "r1", "room": "read", "from": "ann", "text": "a word between us"}).encode()
    given = {"body": base64.b64encode(body).decode()}
    taken: dict[str, Any] = api.post(f"/connections/{made['connection']['id']}/replay", json=given).json()
    return taken


def reads(house: House, name: str) -> list[str]:
    api = house.api(house.token(house.owner(), "admin"))
    found = api.get("/audit", params={"action": "words.read", "member": name}).json()["entries"]
    return [each["subject"] for each in found]


def test_a_look_is_on_record_once_for_each_reader_and_conversation(
    house: House, talk: dict[str, Any]
) -> None:
    place = talk["conversation_id"]
    house.member("reader", "viewer")
    browser = house.browser()
    browser.login("reader")
    for _ in range(3):
        assert "a word between us" in browser.get(f"/conversations/{place}").text
    assert browser.get(f"/inbox/{talk['delivery_id']}").status_code == 200
    assert reads(house, "reader") == [place]
    other = house.api(house.token(house.member("program", "viewer"), "read"))
    assert other.get("/conversations").status_code == 200
    assert reads(house, "program") == [], "a list has no words in it"
    assert other.get(f"/conversations/{place}/messages").status_code == 200
    assert other.get(f"/deliveries/{talk['delivery_id']}").status_code == 200
    assert reads(house, "program") == [place]


def test_ones_own_chat_is_nobody_elses_words(house: House) -> None:
    house.member("talker", "operator")
    browser = house.browser()
    browser.login("talker")
    token = house.api(house.token(house.write(_member), "write"))
    said = token.post("/messages", json={"text": "to myself"}).json()
    assert token.get(f"/conversations/{said['conversation_id']}/messages").status_code == 200
    assert reads(house, "talker") == []


def _member(connection: Any) -> str:
    from gofer.web.auth.members import find_member

    return str(find_member(connection, "talker").id)
