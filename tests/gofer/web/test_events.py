"""Live events: everything once and in order, resumed where it broke off, and no slow reader in anybody's way."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection

from gofer.jobs import event_stream
from gofer.jobs.event_stream import EventFilter, FellBehind, Follower
from gofer.jobs.notifications import EVENTS, LocalSignals
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.events import Cursor, record_many
from gofer.vault.redaction import Redactor
from gofer.web import event_source
from gofer.web.api import events as stream
from gofer.web.auth import guard
from gofer.web.auth.sessions import by_token, revoke_token
from support.patience import eventually, until
from support.web_server import House
from support.world import World

Seen = tuple[str, Any]


@pytest.fixture(scope="module")
def api(house: House) -> httpx2.Client:
    return house.api(house.token(house.owner()))


@pytest.fixture(scope="module")
def connection(api: httpx2.Client) -> str:
    wish = {"integration": "hello", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    return str(api.post("/connections", json=wish).json()["connection"]["id"])


def say(api: httpx2.Client, connection: str, id: str, text: str = "hello") -> dict[str, Any]:
    body = json.dumps({"id": id, "room": id, "from": "ada", "text": text}).encode()
    given = {"body": base64.b64encode(body).decode()}
    taken: dict[str, Any] = api.post(f"/connections/{connection}/replay", json=given).json()
    return taken


def answer_to(api: httpx2.Client, taken: dict[str, Any]) -> int:
    """The job that answers a message."""
    asked = {"conversation": taken["conversation_id"], "kind": "answer"}
    (job,) = api.get("/jobs", params=asked).json()["jobs"]
    return int(job["id"])


def follow(api: httpx2.Client, last: str = "", **wanted: Any) -> Generator[Seen, None, None]:
    """The events of a stream: id and content; the end has no id."""
    headers = {"last-event-id": last} if last else {}
    with api.stream("GET", "/events", params=wanted, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        block: dict[str, str] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                block[name] = value
            elif "data" in block:
                yield block.get("id", ""), json.loads(block["data"])
                block = {}


def test_a_run_is_followed_from_its_first_event_to_its_end(api: httpx2.Client, connection: str) -> None:
    job = answer_to(api, say(api, connection, "whole", "$ echo hi"))
    *seen, end = follow(api, job=job)
    assert end == ("", {"state": "done"})
    assert [event["seq"] for _, event in seen] == list(range(1, len(seen) + 1))
    kinds = [event["kind"] for _, event in seen]
    assert kinds[0] == "job.created"
    assert {"run.started", "turn.finished"} <= set(kinds)
    words = json.dumps([event["data"] for _, event in seen])
    assert "echo hi" in words
    story = api.get(f"/jobs/{job}", params={"words": True}).json()
    assert [event["id"] for event in story["events"]] == [event["id"] for _, event in seen]


def test_a_broken_stream_goes_on_without_loss_or_doubling(api: httpx2.Client, connection: str) -> None:
    job = answer_to(api, say(api, connection, "broken"))
    whole = list(follow(api, job=job))
    for place, (last, _) in enumerate(whole[:-1]):
        assert list(follow(api, last, job=job)) == whole[place + 1 :]


def test_a_conversation_is_followed_from_now_on(house: House, api: httpx2.Client, connection: str) -> None:
    first = say(api, connection, "live")
    list(follow(api, job=answer_to(api, first)))
    watching = follow(house.api(house.token(house.owner())), conversation=first["conversation_id"])
    with closing(watching):
        # Nothing old comes; what is said now does, at once.
        others = say(api, connection, "elsewhere")
        body = json.dumps({"id": "again", "room": "live", "from": "ada", "text": "and now?"}).encode()
        given = {"body": base64.b64encode(body).decode()}

        def speak() -> None:
            if until(lambda: house.platform.follower.watching > 0):
                api.post(f"/connections/{connection}/replay", json=given)

        later = threading.Thread(target=speak)
        later.start()
        # The reply to the first one is still being sent, to nobody.
        event = next(event for _, event in watching if event["kind"] == "delivery.accepted")
        later.join()
    assert event["conversation_id"] == first["conversation_id"] != others["conversation_id"]


def test_what_cannot_be_followed_is_said(api: httpx2.Client) -> None:
    for asked, status in (
        ({"job": 987654321}, 404),
        ({"conversation": "nowhere"}, 404),
        ({"after": "yesterday"}, 400),
        ({"job": "x"}, 400),
        ({"job": 2**70}, 400),
        ({"surprise": 1}, 400),
    ):
        answer = api.get("/events", params=asked)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert api.get("/events", headers={"last-event-id": "x" * 99}).status_code == 400


def test_one_member_does_not_take_every_place(
    house: House, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_STREAMS_EACH", 1)
    with api.stream("GET", "/events") as first:
        lines = first.iter_lines()
        assert next(lines) == "retry: 1000"
        assert api.get("/events").status_code == 503
        other = house.api(house.token(house.member("olga", "viewer", password=""), "read"))
        with other.stream("GET", "/events") as second:
            assert second.status_code == 200
    assert until(lambda: house.platform.follower.watching == 0)
    assert api.head("/events").status_code == 200


def many(connection: Connection, count: int, size: int = 10) -> None:
    rows = [
        {"kind": "error", "workspace_id": FIRST_WORKSPACE, "data": {"n": n, "x": "x" * size}}
        for n in range(count)
    ]
    record_many(connection, rows)


def test_a_reader_who_does_not_read_is_cut_off(
    house: House, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_source, "SEND_TIMEOUT", 0.2)
    token = house.token(house.owner())
    port = int(house.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(
            f"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        )
        lazy.recv(100)
        assert until(lambda: house.platform.follower.watching == 1)
        house.write(many, count=1000, size=10_000)
        house.platform.signals.wake(EVENTS)
        assert until(lambda: house.platform.follower.watching == 0)
    assert api.get("/me").status_code == 200


async def test_one_who_lags_is_let_go_and_the_others_see_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both databases."""
    monkeypatch.setattr(event_stream, "MAX_BEHIND", 50)
    signals = LocalSignals()
    follower = Follower(database=world.database, vault=world.vault, redactor=Redactor(), signals=signals)
    numbers: list[int] = []

    async def keep_up() -> None:
        async for found in follower.watch(EventFilter(), None, pulse=5):
            numbers.extend(event["data"]["n"] for event in found)

    keeping_up = asyncio.create_task(keep_up())
    await world.run(many, count=1)
    lagging = follower.watch(EventFilter(), Cursor(), pulse=5)
    assert await anext(lagging)
    await eventually(lambda: follower.watching == 2)
    for number in range(1, 6):
        await world.run(many, count=30)
        signals.wake(EVENTS)
        await eventually(partial(lambda expected: len(numbers) >= expected, number * 30))
    assert numbers[-150:] == [*range(30)] * 5
    with pytest.raises(FellBehind):
        await anext(lagging)
    await follower.close()
    keeping_up.cancel()
    await asyncio.gather(keeping_up, return_exceptions=True)


def test_a_revoked_token_ends_what_it_opened(
    house: House, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.05)
    with house.api(token := house.token(house.owner(), "read")).stream("GET", "/events") as response:
        lines = response.iter_lines()
        next(lines)
        made = house.read(by_token, value=token)
        assert made is not None
        house.write(revoke_token, token_id=made.visitor.token_id, member_id=None)
        assert [line for line in lines if line.startswith("data:")] == []
