"""Wake-ups between processes: coalesced, found again after a break, and never the only way to learn of work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from gofer.jobs.notifications import EVENTS, JOBS, LocalSignals, PostgresSignals, RedisSignals, SharedSignals
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.worker import Run
from gofer.store.postgres import PostgresDatabase
from gofer.vault.envelope import Vault
from support.patience import patiently
from support.servers import Server
from support.world import World

Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def valkey() -> Iterator[Server]:
    server = Server("valkey")
    yield server
    server.leave()


@pytest.fixture(params=["postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        postgres_url: str = request.getfixturevalue("postgres_url")
        return postgres_url
    valkey: Server = request.getfixturevalue("valkey")
    return valkey.valkey_url


def signals(url: str) -> SharedSignals:
    return PostgresSignals(url) if url.startswith("postgres") else RedisSignals(url)


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[SharedSignals, SharedSignals]]:
    """Two processes' signals that have found each other."""
    here, there = signals(url), signals(url)
    await here.start()
    await there.start()
    assert await heard(here, there, "hello")
    assert await heard(there, here, "hello")
    yield here, there
    await here.close()
    await there.close()


async def heard(here: SharedSignals, there: SharedSignals, topic: str) -> bool:
    """Whether wake-ups here arrive there, however long one takes; those sent while nobody listens are lost."""
    waiting = there.subscribe(topic)
    try:
        async with patiently(20):
            while True:
                here.wake(topic)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiting.wait(), 0.2)
                    return True
    finally:
        there.unsubscribe(topic, waiting)


async def test_a_waiter_is_woken_once_per_wake_and_remembers_one_it_missed() -> None:
    local = LocalSignals()
    waiting = local.subscribe(JOBS)
    local.wake(JOBS)
    local.wake(JOBS)
    async with patiently(5):
        await waiting.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await waiting.wait()


async def test_two_topics_woken_together_both_arrive(pair: tuple[SharedSignals, SharedSignals]) -> None:
    here, there = pair
    for _ in range(5):
        jobs, events = there.subscribe(JOBS), there.subscribe(EVENTS)
        here.wake(JOBS)
        here.wake(EVENTS)
        async with patiently(5):
            await jobs.wait()
            await events.wait()
        await asyncio.sleep(0.06)


async def test_a_storm_of_wakes_is_few_notifications_and_the_last_one_arrives(
    pair: tuple[SharedSignals, SharedSignals],
) -> None:
    here, there = pair
    arrivals = 0
    waiting = there.subscribe(JOBS)

    async def count() -> None:
        nonlocal arrivals
        while True:
            await waiting.wait()
            arrivals += 1

    counting = asyncio.ensure_future(count())
    for _ in range(200):
        here.wake(JOBS)
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    counting.cancel()
    assert 2 <= arrivals <= 40


async def test_listening_goes_on_after_the_connection_is_cut(
    pair: tuple[SharedSignals, SharedSignals], url: str
) -> None:
    here, there = pair
    if url.startswith("postgres"):
        admin = await asyncpg.connect(url)
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await admin.close()
    else:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(url) as client:
            await client.client_kill_filter(_type="pubsub")
    assert await heard(here, there, JOBS)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_connection_that_only_looks_alive_is_made_anew(
    pair: tuple[SharedSignals, SharedSignals], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that it is gone: the server's end stands still, as behind a router that has forgotten it."""
    here, there = pair
    monkeypatch.setattr("gofer.jobs.notifications.CHECK_EVERY", 0.1)
    monkeypatch.setattr("gofer.jobs.notifications.CHECK_TIMEOUT", 0.3)
    await there.close()
    await there.start()
    assert await heard(here, there, JOBS)
    admin = await asyncpg.connect(url)
    stuck = await admin.fetchval(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "ORDER BY backend_start DESC LIMIT 1"
    )
    await admin.close()
    os.kill(stuck, signal.SIGSTOP)
    try:
        assert await heard(here, there, JOBS)
    finally:
        os.kill(stuck, signal.SIGCONT)


async def succeed(run: Run) -> Outcome:
    return Done()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_without_signals_polling_finds_the_work(
    kind: str, postgres_url: str, vault: Vault, eventually: Eventually
) -> None:
    """Redis (or LISTEN) is not there at all: start, wake and work go on."""
    database = PostgresDatabase(postgres_url)
    world = await World.made(database, vault)
    gone = (
        RedisSignals("unix:///nowhere.sock")
        if kind == "redis"
        else PostgresSignals("postgresql://@/x?host=/nowhere")
    )
    await gone.start()

    async def is_done() -> bool:
        return await world.state(job) == "done"

    async with world.worker({"work": succeed}, signals=gone):
        job = await world.submit()
        gone.wake(JOBS)
        await eventually(is_done)
    await gone.close()
    await database.close()


async def test_redis_going_away_in_the_middle_costs_only_speed(
    valkey: Server, postgres_url: str, vault: Vault, eventually: Eventually
) -> None:
    database = PostgresDatabase(postgres_url)
    world = await World.made(database, vault)
    shared = RedisSignals(valkey.valkey_url)
    await shared.start()

    async def work_is_done() -> bool:
        job = await world.submit()
        shared.wake(JOBS)

        async def is_done() -> bool:
            return await world.state(job) == "done"

        return bool(await eventually(is_done))

    async with world.worker({"work": succeed}, signals=shared):
        assert await work_is_done()
        await asyncio.to_thread(valkey.stop_for_now)
        assert await work_is_done()
        await asyncio.to_thread(valkey.start_again)
        assert await work_is_done()
    await shared.close()
    await database.close()


@pytest.mark.parametrize("skew", [300.0, -300.0])
async def test_a_workers_own_clock_does_not_matter(
    skew: float, postgres_url: str, vault: Vault, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    database = PostgresDatabase(postgres_url)
    world = await World.made(database, vault)
    held = await world.submit()
    await world.claim_one(owner="a worker with the right time", lease=30)

    async def is_done() -> bool:
        return await world.state(job) == "done"

    async with world.worker({"work": succeed}):
        job = await world.submit(delay=0.1)
        later = await world.submit(delay=60)
        await eventually(is_done)
    assert await world.states(held, later) == ["running", "scheduled"]
    await database.close()
