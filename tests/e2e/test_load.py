"""More than the server can take, over HTTP on both databases: shed with a word, and what was accepted is kept."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import func, select

from e2e.door import KEY, SIGNATURE, Door, message, open_door, problem_of, sign
from gofer.integration import Request
from gofer.settings import Settings
from gofer.store.tables import deliveries
from gofer.web.hooks import NOT_NOW
from gofer_standins.hello import HelloService


@pytest.fixture
async def service() -> AsyncIterator[HelloService]:
    async with HelloService(KEY).open() as service:
        yield service


async def test_a_burst_beyond_the_bound_is_shed_and_what_was_accepted_is_all_answered(
    database_url: str, data_dir: Path, service: HelloService, eventually: Callable[..., Any]
) -> None:
    settings = Settings(data_dir=data_dir, database_url=database_url, max_waiting=20)
    service.rooms = {f"room {number}" for number in range(60)}
    bodies = [message(room=room) for room in sorted(service.rooms)]
    async with open_door(settings, "web", reply_url=service.url) as door:
        responses = await asyncio.gather(*(door.post(body) for body in bodies))
        assert (await door.client.get("/healthz")).status_code == 200
    answered = Counter(response.status_code for response in responses)
    assert answered[200] >= 20
    assert answered[503] > 0
    assert answered[200] + answered[503] == 60
    for response in responses:
        if response.status_code == 503:
            assert problem_of(response)["code"] == "busy"
            assert int(response.headers["retry-after"]) > 0
    ids = {json.loads(body)["id"]: body for body in bodies}
    accepted = {id_ for id_, response in zip(ids, responses, strict=True) if response.is_success}
    async with open_door(settings, "web", "worker", connection_id=door.connection_id) as door:
        await eventually(lambda: {reply.to for reply in service.ledger} == accepted)
        # Whoever comes back is let in once there is room.
        shed = next(id_ for id_ in ids if id_ not in accepted)
        await eventually(lambda: _accepted(door, ids[shed]))
        await eventually(lambda: shed in {reply.to for reply in service.ledger})
    assert len(service.ledger) == len(accepted) + 1


async def _accepted(door: Door, body: bytes) -> bool:
    return (await door.post(body)).status_code == 200


async def test_more_at_once_than_can_be_recorded_is_shed(database_url: str, data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir, database_url=database_url)
    async with open_door(settings, "web") as door:
        door.platform.intake.gate.most_at_once = 5
        bodies = [message(room=f"hall {number % 7}") for number in range(60)]
        responses = await asyncio.gather(*(door.post(body) for body in bodies))
        answered = Counter(response.status_code for response in responses)
        assert set(answered) == {200, 503}
        assert {response.headers["retry-after"] for response in responses if response.is_error} == {"1"}
        assert await door.rows(select(func.count()).select_from(deliveries)) == [(answered[200],)]


async def test_large_messages_at_once_are_not_there_many_times_over(
    database_url: str, data_dir: Path
) -> None:
    size, together = 4_000_000, 3
    async with open_door(Settings(data_dir=data_dir, database_url=database_url), "web") as door:
        await door.post(message())  # what is made once is made
        requests = []
        for n in range(together):
            body = message("x" * size, room=f"room {n}")
            requests.append(Request(body, ((SIGNATURE, sign(body).encode()),)))
        tracemalloc.start()
        try:
            took = await asyncio.gather(
                *(door.platform.intake.receive(door.connection_id, r) for r in requests)
            )
            left, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert {each.result for each in took} == {"accepted"}
    assert peak < 6 * size
    assert left < size


# A store that cannot take it.


async def test_a_store_that_cannot_write_is_a_503_and_nothing_is_half_stored(
    database_url: str, data_dir: Path
) -> None:
    settings = Settings(data_dir=data_dir, database_url=database_url)
    async with open_door(settings, "web") as door:
        before = await door.counts()
        await _forbid_writing(door)
        response = await door.post(message("x" * 100_000, room="full"))
        assert response.status_code == 503, response.text
        assert problem_of(response)["detail"] == NOT_NOW
        reason = door.platform.refusals.recent[-1].reason
        assert "full" in reason or "read-only" in reason
        assert response.headers["retry-after"]
        assert (await door.client.get("/healthz")).status_code == 200
        await _allow_writing(door)
        assert await door.counts() == before
        assert (await door.post(message("x" * 100_000, room="full"))).status_code == 200


async def _forbid_writing(door: Door) -> None:
    if door.platform.database.dialect == "sqlite":
        # As a full disk does.
        await door.do(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1"))
    else:
        # As a fail-over to a replica does.
        await _for_new_sessions(door, "ALTER DATABASE {name} SET default_transaction_read_only = on")


async def _allow_writing(door: Door) -> None:
    if door.platform.database.dialect == "sqlite":
        await door.do(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1000000"))
    else:
        await _for_new_sessions(door, "ALTER DATABASE {name} SET default_transaction_read_only = off")


async def _for_new_sessions(door: Door, statement: str) -> None:
    url = door.platform.settings.database_url
    connection = await asyncpg.connect(url)
    await connection.execute("SET default_transaction_read_only = off")
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(statement.format(name=name))
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
    # The sessions that were ended are noticed by being used.
    for _ in range(20):
        try:
            await door.counts()
        except Exception:
            await asyncio.sleep(0.01)
