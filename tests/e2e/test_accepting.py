"""What is accepted over HTTP: kept once, whole, and answered, on both databases."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest
from sqlalchemy import select

from e2e.door import KEY, Door, message, sign
from e2e.keys import set_key
from gofer.secrets.secret_store import put_secret
from gofer.store.tables import JobState, conversations, deliveries, jobs, messages
from gofer.vault.redaction import Secret
from gofer.web.queries.deliveries import kept_content

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("own_url", ["sqlite", "postgresql"], indirect=True, scope="module"),
]


async def gained(door: Door, before: dict[str, int]) -> dict[str, int]:
    after = await door.counts()
    return {name: after[name] - before[name] for name in ("delivery", "message", "job")}


async def test_a_message_becomes_one_job(door: Door) -> None:
    before = await door.counts()
    response = await door.post(message(room="one job"))
    assert (response.status_code, response.json()) == (200, {"result": "accepted"})
    assert await gained(door, before) == {"delivery": 1, "message": 1, "job": 1}


async def test_a_hundred_identical_deliveries_at_once_become_one_job(door: Door) -> None:
    before = await door.counts()
    body = message(room="a hundred")
    responses = await asyncio.gather(*(door.post(body) for _ in range(100)))
    assert Counter(response.status_code for response in responses) == {200: 100}
    assert Counter(response.json()["result"] for response in responses) == {"accepted": 1, "repeat": 99}
    assert await gained(door, before) == {"delivery": 1, "message": 1, "job": 1}


async def test_a_hundred_messages_at_once_in_a_new_place_are_all_kept_for_one_job(door: Door) -> None:
    before = await door.counts()
    bodies = [message(room="crowd") for _ in range(100)]

    async def send(body: bytes) -> int:
        """As a service does: again, where a busy store had no room in time."""
        while (status := (await door.post(body)).status_code) == 503:
            await asyncio.sleep(0.1)
        return status

    assert set(await asyncio.gather(*map(send, bodies))) == {200}
    assert await gained(door, before) == {"delivery": 100, "message": 100, "job": 1}
    found = await door.rows(select(conversations.c.last_seq).where(conversations.c.title == "crowd"))
    assert found == [(100,)]


async def test_the_same_delivery_id_in_two_places_at_once_is_one_delivery(door: Door) -> None:
    before = await door.counts()
    bodies = [message(room=f"place {number}", id_="same everywhere") for number in range(20)]
    responses = await asyncio.gather(*(door.post(body) for body in bodies))
    assert {response.status_code for response in responses} == {200}
    assert await gained(door, before) == {"delivery": 1, "message": 1, "job": 1}


async def test_what_is_known_but_needs_nothing_is_kept_and_said(door: Door) -> None:
    before = await door.counts()
    body = json.dumps({"id": "ping-1", "ping": True}).encode()
    assert (await door.post(body)).json() == {"result": "noted"}
    assert (await door.post(body)).json() == {"result": "repeat"}
    assert await gained(door, before) == {"delivery": 1, "message": 0, "job": 0}
    (row,) = await door.rows(select(deliveries).where(deliveries.c.external_id == "ping-1"))
    content = await door.platform.database.read(
        lambda connection: kept_content(connection, door.platform.vault, row)
    )
    assert body not in row.sealed
    assert content is not None
    assert content[1] == body


async def test_talk_that_addresses_nobody_is_kept_and_wakes_nobody(door: Door) -> None:
    before = await door.counts()
    assert (await door.post(message(room="talk", addressed=False))).json() == {"result": "accepted"}
    assert await gained(door, before) == {"delivery": 1, "message": 1, "job": 0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "🦊" * 1000,
        "a\nb\tc",
        "\u202eevil\u202c",
        "x" * 900_000,
        "\\u0000 in words",
        "'; DROP TABLE job; --",
    ],
    ids=["empty", "emoji", "white", "bidi", "900kB", "escaped", "sql"],
)
async def test_odd_texts_are_kept_as_they_are(door: Door, text: str) -> None:
    before = await door.counts()
    assert (await door.post(message(text, room="odd"))).status_code == 200
    assert (await gained(door, before))["message"] == 1


async def test_a_body_in_tiny_chunks_is_read_whole(door: Door) -> None:
    body = message(room="chunks")

    async def drops() -> AsyncIterator[bytes]:
        for at in range(len(body)):
            yield body[at : at + 1]

    response = await door.client.post(door.path, content=drops(), headers={"x-hello-signature": sign(body)})
    assert response.json() == {"result": "accepted"}


async def test_requests_in_one_breath_are_each_answered_in_order(door: Door) -> None:
    first, second, third = (message(room="pipeline") for _ in range(3))
    keep = {"connection": "keep-alive"}
    answer = await door.raw(
        door.head(first, headers=keep) + first
        + door.head(second, headers={**keep, "x-hello-signature": "0" * 64}) + second
        + door.head(third) + third
    )  # fmt: skip
    assert [part[1:4] for part in answer.split(b"HTTP/1.1")[1:]] == [b"200", b"401", b"200"]


async def test_garbage_behind_a_good_request_harms_only_itself(door: Door) -> None:
    before = await door.counts()
    body = message(room="garbage")
    answer = await door.raw(
        door.head(body, headers={"connection": "keep-alive"}) + body + b"\x00\xff\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert await gained(door, before) == {"delivery": 1, "message": 1, "job": 1}


async def test_a_second_request_hidden_in_a_body_is_a_body(door: Door) -> None:
    before = await door.counts()
    hidden = message(room="smuggled")
    outer = door.head(hidden) + hidden
    answer = await door.raw(door.head(outer) + outer)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert await gained(door, before) == {"delivery": 0, "message": 0, "job": 0}


async def test_a_new_key_counts_from_the_next_request_even_if_another_process_set_it(door: Door) -> None:
    body = message(room="rotated")
    new = "a-new-signing-key-of-this-connection"
    if door.platform.database.dialect == "sqlite":  # where no other process can
        await set_key(door, new)
    else:
        await door.do(
            partial(
                put_secret,
                vault=door.platform.vault,
                workspace_id="main",
                owner=door.connection_id,
                name="signing_key",
                value=Secret(new),
            )
        )
    try:
        assert (await door.post(body)).status_code == 401
        assert (await door.post(body, signature=sign(body, new))).status_code == 200
    finally:
        await set_key(door, KEY)


async def test_nothing_that_was_accepted_here_is_stranded(door: Door) -> None:
    """The last test of the file: everything above left only messages that a job covers."""
    waiting = set(await door.rows(select(jobs.c.conversation_id).where(jobs.c.state == JobState.READY)))
    wanted = set(await door.rows(select(messages.c.conversation_id).where(messages.c.addressed)))
    assert wanted <= waiting
