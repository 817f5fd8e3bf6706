"""Requests to the outside that nobody knows the end of: none goes out under a lease that is over, none twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from e2e.door import KEY, message, open_door
from e2e.scenario import prepared
from gofer.errors import Fenced
from gofer.jobs import lease
from gofer.jobs.lease import Lease, clock, only_while_held
from gofer.settings import Settings
from gofer.store.tables import JobState, ReplyState, jobs, replies
from gofer_standins.hello import Fault, HelloService


@pytest.fixture
async def service() -> AsyncIterator[HelloService]:
    async with HelloService(KEY, rooms={"kitchen"}).open() as service:
        yield service


async def test_nothing_is_sent_once_the_lease_is_over(service: HelloService) -> None:
    """As when a worker is frozen between the decision to send and the first byte, and wakes after its lease."""
    reply = {"key": "k", "room": "kitchen", "text": "late", "to": ""}
    async with httpx2.AsyncClient(event_hooks={"request": [only_while_held]}) as client:
        lease.current.set(Lease(clock(), 60))
        assert (await client.post(service.url, json=reply)).status_code == 201
        lease.current.get().prolong(clock() - 61, 60)  # type: ignore[union-attr]
        with pytest.raises(Fenced):
            await client.post(service.url, json=reply)
        lease.current.get().prolong(clock(), 60)  # type: ignore[union-attr]
        assert (await client.post(service.url, json=reply)).status_code == 201
    assert len(service.ledger) == 2
    assert not service.refused


async def test_a_service_that_takes_a_reply_after_our_time_out_is_not_sent_a_second(
    database_url: str, data_dir: Path, service: HelloService, eventually: Callable[..., Any]
) -> None:
    settings = Settings(
        data_dir=data_dir, database_url=database_url, poll_interval=0.05, request_timeout=1, sandbox="off"
    )
    service.faults.append(Fault("stalled", 1.6))
    async with open_door(settings, "web", "worker", reply_url=service.url) as door:
        assert (await door.post(message(room="kitchen"))).status_code == 200

        async def interrupted() -> bool:
            sending = select(jobs.c.id).where(jobs.c.kind == "deliver", jobs.c.state == JobState.SCHEDULED)
            return bool(await door.rows(sending))

        await eventually(interrupted)
        # Whatever the backoff, the next try comes at once: the worst case.
        await door.do(lambda c: c.execute(update(jobs).where(jobs.c.kind == "deliver").values(run_at=0)))

        async def sent() -> bool:
            return bool(await door.rows(select(replies.c.id).where(replies.c.state == ReplyState.SENT)))

        await eventually(sent)
    assert len(service.ledger) == 1


async def test_a_service_that_is_slow_while_its_sender_is_stopped_gets_one_reply(
    database_url: str, data_dir: Path, service: HelloService, eventually: Callable[..., Any]
) -> None:
    """A graceful stop gives up a request whose answer does not come in time; the next process must not hurry."""
    settings = Settings(
        data_dir=data_dir,
        database_url=database_url,
        poll_interval=0.05,
        request_timeout=1,
        stop_within=0,
        sandbox="off",
    )
    service.faults.append(Fault("stalled", 1.2))
    async with open_door(settings, "web", "worker", reply_url=service.url) as door:
        assert (await door.post(message(room="kitchen"))).status_code == 200
        await eventually(lambda: not service.faults)
        taken_at = time.monotonic() + 1.2
    async with open_door(settings, "worker", connection_id=door.connection_id) as door:

        async def sent() -> bool:
            return bool(await door.rows(select(replies.c.id).where(replies.c.state == ReplyState.SENT)))

        await eventually(sent)
    await asyncio.sleep(taken_at + 0.2 - time.monotonic())
    assert len(service.ledger) == 1


async def test_a_service_that_is_slow_while_its_sender_is_killed_gets_one_reply(
    data_dir: Path, eventually: Callable[..., Any]
) -> None:
    """On SQLite the next start takes over at once: what the dead one asked for may still come about."""
    async with prepared(data_dir, "") as scenario:
        gofer = scenario.start().wait_until_ready()
        scenario.service.faults.append(Fault("stalled", 1.9))
        await scenario.say("m1", "kitchen", "hello")

        async def taken() -> bool:
            return not scenario.service.faults

        await eventually(taken)
        gofer.kill()
        scenario.start().wait_until_ready()
        assert await scenario.settle()
        assert not (await scenario.findings()).doubled
