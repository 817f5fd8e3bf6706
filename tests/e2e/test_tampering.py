"""Rows that somebody changed behind our back: a clean error, no fallback, and nobody else is held up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from e2e.door import KEY, Door, message, open_door, problem_of
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.tables import (
    JobState,
    ReplyState,
    connections,
    conversations,
    jobs,
    messages,
    replies,
    secrets,
)
from gofer.web.hooks import NOT_NOW
from gofer_standins.hello import Fault, HelloService


def flipped(sealed: bytes) -> bytes:
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


HARM: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flipped,
    "another version": lambda sealed: b"\x09" + sealed[1:],
    "truncated": lambda sealed: sealed[:20],
    "emptied": lambda sealed: b"",
}


@pytest.fixture
async def service() -> AsyncIterator[HelloService]:
    async with HelloService(KEY, rooms={"kitchen", "garden"}).open() as service:
        yield service


@pytest.fixture
def settings(database_url: str, data_dir: Path) -> Settings:
    return Settings(
        data_dir=data_dir, database_url=database_url, lease=0.5, poll_interval=0.05, sandbox="off"
    )


@pytest.fixture
async def door(settings: Settings) -> AsyncIterator[Door]:
    async with open_door(settings, "web") as door:
        yield door


async def change(door: Door, column: Any, harm: Callable[[bytes], bytes], *where: Any) -> None:
    def harmed(connection: Connection) -> None:
        (sealed,) = connection.execute(select(column).where(*where).limit(1)).one()
        connection.execute(update(column.table).where(*where).values({column.name: harm(bytes(sealed))}))

    await door.do(harmed)
    door.platform.accounts.forget()


async def test_a_key_that_was_changed_is_an_error_and_never_a_pass(door: Door) -> None:
    ours = secrets.c.owner == door.connection_id
    (row,) = await door.rows(select(secrets).where(ours))
    for column in (secrets.c.sealed, secrets.c.data_key):
        for harm in HARM.values():
            await change(door, column, harm, ours)
            for signature in (None, "", "0" * 64):
                response = await door.post(message(), signature=signature)
                assert response.status_code == 503
                assert problem_of(response)["detail"] == NOT_NOW
            kept = bytes(getattr(row, column.name))
            await change(door, column, lambda _, kept=kept: kept, ours)  # type: ignore[misc]
    assert (await door.post(message())).status_code == 200


async def test_a_key_that_was_moved_from_another_connection_does_not_open(door: Door) -> None:
    other = "hello_other"

    def move(connection: Connection) -> None:
        (row,) = connection.execute(select(secrets).where(secrets.c.owner == door.connection_id))
        values = {**row._mapping, "id": "sec_moved", "owner": other}
        (kept,) = connection.execute(select(connections).where(connections.c.id == door.connection_id))
        row_macs.insert(connection, connections, {**kept._mapping, "id": other, "name": "other"})
        connection.execute(secrets.insert().values(**values))

    await door.do(move)
    response = await door.post(message(), path=f"/hooks/{other}")
    assert response.status_code == 503
    assert problem_of(response)["detail"] == NOT_NOW


async def test_a_conversation_whose_key_was_changed_stops_nobody_else(
    settings: Settings, service: HelloService, eventually: Callable[..., Any]
) -> None:
    """What was accepted there ends, without a word, because none can be sealed; others are answered as ever."""
    async with open_door(settings, "web", reply_url=service.url) as door:
        assert (await door.post(message(room="kitchen"))).status_code == 200
        await change(door, conversations.c.data_key, flipped)
        # Its last try: how it comes to an end is the point, not how often it is tried before.
        await door.do(lambda c: c.execute(update(jobs).values(max_attempts=1)))
        response = await door.post(message(room="kitchen"))
        assert response.status_code == 503
        assert problem_of(response)["detail"] == NOT_NOW
        assert (await door.post(message(room="garden"))).status_code == 200
    async with open_door(settings, "web", "worker", connection_id=door.connection_id) as door:
        ended = select(jobs.c.state).where(jobs.c.kind == "answer").order_by(jobs.c.id)
        await eventually(lambda: _is(door, ended, [JobState.DEAD, JobState.DONE]))
        await eventually(lambda: [reply.room for reply in service.ledger] == ["garden"])


async def test_a_message_that_was_changed_is_not_answered_as_if_it_were_not(
    settings: Settings, service: HelloService, eventually: Callable[..., Any]
) -> None:
    async with open_door(settings, "web", reply_url=service.url) as door:
        assert (await door.post(message(room="kitchen"))).status_code == 200
        await change(door, messages.c.sealed, flipped)
        await door.do(lambda c: c.execute(update(jobs).values(max_attempts=1)))
    async with open_door(settings, "web", "worker", connection_id=door.connection_id) as door:
        ended = select(jobs.c.state).where(jobs.c.kind == "answer")
        await eventually(lambda: _is(door, ended, [JobState.DEAD]))
        assert (await door.post(message(room="kitchen"))).status_code == 200


async def test_a_reply_that_was_changed_is_not_sent_and_does_not_hold_up_the_next(
    settings: Settings, service: HelloService, eventually: Callable[..., Any]
) -> None:
    service.faults.append(Fault("busy", 1))
    async with open_door(settings, "web", "worker", reply_url=service.url) as door:
        assert (await door.post(message(room="kitchen"))).status_code == 200
        await eventually(lambda: not service.faults)
        await change(door, replies.c.sealed, flipped)
        failed = select(replies.c.state).order_by(replies.c.id)
        await eventually(lambda: _is(door, failed, [ReplyState.FAILED]))
        assert (await door.post(message(room="kitchen"))).status_code == 200
        await eventually(lambda: len(service.ledger) == 1)
        await eventually(lambda: _is(door, failed, [ReplyState.FAILED, ReplyState.SENT]))
        reasons = await door.rows(select(replies.c.reason).order_by(replies.c.id).limit(1))
        assert reasons[0][0].startswith("vault.tampered")


async def _is(door: Door, query: Any, wanted: list[str]) -> bool:
    return [value for (value,) in await door.rows(query)] == wanted
