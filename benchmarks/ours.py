"""Gofer's engine under load: the real store, queue and worker; only the handler does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert

from benchmarks.measure import Measured
from gofer.app import Platform, open_app
from gofer.handlers import SERVICE_SLOTS
from gofer.jobs.notifications import JOBS
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.queue import AGENT, SERVICE, submit
from gofer.jobs.worker import Capacity, Handler, Run, Worker
from gofer.secrets.rotation import new_conversation_key
from gofer.settings import load_settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import JobState, conversations, in_state
from gofer.store.tables import jobs as jobs_table
from gofer.vault.envelope import Vault

SLOTS = 16
PAYLOAD = "x" * 1000
KIND = "nothing"


@contextlib.asynccontextmanager
async def platform(
    database_url: str = "", beside: Path | None = None, **given: Any
) -> AsyncIterator[Platform]:
    """An instance without a worker: a fresh one in a directory of its own, or one that shares another's."""
    with tempfile.TemporaryDirectory(prefix="gofer-bench-") as folder:
        settings = load_settings(data_dir=beside or Path(folder), database_url=database_url, **given)
        async with open_app(settings, roles=frozenset()) as opened:
            yield opened


@contextlib.asynccontextmanager
async def worker(
    platform: Platform, handle: Handler, slots: int = SLOTS, lease: float = 30
) -> AsyncIterator[Worker]:
    """A worker whose only kind of job is ours; both pools of slots, as in a real process."""
    made = Worker(
        owner=platform.owner,
        database=platform.database,
        vault=platform.vault,
        signals=platform.signals,
        handlers={KIND: handle},
        apology=lambda *_: (),
        capacity=Capacity(slots={AGENT: slots, SERVICE: SERVICE_SLOTS}, lease=lease),
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def converse(connection: Connection, vault: Vault, names: list[str]) -> None:
    """Conversations whose rows the jobs' ends will lock."""
    connection.execute(
        insert(conversations).values(created_at=now(), workspace_id=FIRST_WORKSPACE, kind="chat", title=""),
        [
            {"id": name, "data_key": new_conversation_key(connection, vault, name), "last_seq": 0}
            for name in names
        ],
    )


def one(connection: Connection, conversation: str) -> int | None:
    """A job in a conversation's lane."""
    return submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=KIND,
        lane=conversation,
        conversation_id=conversation,
        payload={"text": PAYLOAD},
    )


async def fill(platform: Platform, jobs: int, lanes: int, prefix: str = "c") -> None:
    """Queue jobs in lanes: the first of each is ready, the others are blocked behind it."""
    names = [f"{prefix}{number}" for number in range(lanes)]
    await platform.database.write(partial(converse, vault=platform.vault, names=names))

    def some(connection: Connection, numbers: range) -> None:
        for number in numbers:
            one(connection, names[number % lanes])

    for begin in range(0, jobs, 500):
        await platform.database.write(partial(some, numbers=range(begin, min(jobs, begin + 500))))


async def drain(
    platform: Platform, jobs: int, before: Callable[[Run], Awaitable[None]] | None = None
) -> float:
    """Jobs per second from the worker's start until the last one is concluded."""
    ended = 0

    async def nothing(run: Run) -> Outcome:
        nonlocal ended
        if before is not None:
            await before(run)
        ended += 1
        return Done()

    began = time.perf_counter()
    async with worker(platform, nothing) as working:
        while ended < jobs or (before is None and working.running):
            await asyncio.sleep(0.002)
        return jobs / (time.perf_counter() - began)


async def measure(database_url: str, *, jobs: int, samples: int) -> Measured:
    """A drain and starts on a fresh database, ten jobs to a lane."""
    async with platform(database_url) as opened:
        await fill(opened, jobs, jobs // 10)
        rate = await drain(opened, jobs)
        return Measured(rate, await starts(opened, samples))


async def starts(platform: Platform, samples: int) -> list[float]:
    """Milliseconds from the call that makes a job to its handler, one at a time, on an idle worker."""
    began: dict[str, float] = {}
    taken: list[float] = []

    async def note(run: Run) -> Outcome:
        taken.append((time.perf_counter() - began[run.claim.lane]) * 1000)
        return Done()

    names = [f"s{number}" for number in range(samples)]
    await platform.database.write(partial(converse, vault=platform.vault, names=names))
    async with worker(platform, note):
        await asyncio.sleep(0.3)
        for name in names:
            await asyncio.sleep(random.uniform(0.005, 0.02))
            began[name] = time.perf_counter()
            await platform.database.write(partial(one, conversation=name))
            platform.signals.wake(JOBS)
        while len(taken) < samples:
            await asyncio.sleep(0.002)
    return taken


async def pile(platform: Platform, conversation: str, jobs: int) -> None:
    """Queue jobs in one conversation."""

    def some(connection: Connection, number: int) -> None:
        for _ in range(number):
            one(connection, conversation)

    for begin in range(0, jobs, 500):
        await platform.database.write(partial(some, number=min(500, jobs - begin)))


def clear(connection: Connection) -> None:
    """Drop what has not begun."""
    connection.execute(delete(jobs_table).where(in_state(JobState.BLOCKED)))
