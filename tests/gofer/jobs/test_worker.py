"""A worker at work: it runs, renews, stops what is cancelled or lost, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gofer.errors import Fenced, StoreUnavailable
from gofer.jobs import queue
from gofer.jobs.finish import MAX_OUTAGES, finish_runs
from gofer.jobs.outcome import OUTAGE, Done, Outcome, Retry, Snooze
from gofer.jobs.worker import Run
from gofer.secrets.key_check import sealing_key
from gofer.store import events
from gofer.store.database import Database
from gofer.store.tables import jobs
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring
from support.both_databases import slow_on_postgres
from support.db_outage import Away
from support.patience import patiently
from support.world import World

database_url = slow_on_postgres

Eventually = Callable[..., Awaitable[Any]]


async def succeed(run: Run) -> Outcome:
    return Done()


async def last_for_ever(run: Run) -> Outcome:
    await asyncio.Event().wait()
    return Done()


def is_state(world: World, job: int, state: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await world.state(job) == state

    return check


async def test_jobs_are_done_and_lanes_are_kept(world: World, eventually: Eventually) -> None:
    running: list[str] = []

    async def work(run: Run) -> Outcome:
        assert run.claim.lane not in running
        running.append(run.claim.lane)
        await asyncio.sleep(0.005)
        running.remove(run.claim.lane)
        return Done()

    made = [await world.submit(f"room-{n % 3}") for n in range(12)]
    async with world.worker({"work": work}):
        await eventually(is_state(world, made[-1], "done"))
        await eventually(is_state(world, made[-2], "done"))
    assert set(await world.states(*made)) == {"done"}


async def test_no_more_run_at_once_than_there_are_slots(world: World, eventually: Eventually) -> None:
    at_once: list[int] = []
    working: set[int] = set()

    async def work(run: Run) -> Outcome:
        working.add(run.claim.id)
        at_once.append(len(working))
        await asyncio.sleep(0.005)
        working.remove(run.claim.id)
        return Done()

    made = [await world.submit() for _ in range(9)]
    async with world.worker({"work": work}, slots=3):
        await eventually(is_state(world, made[-1], "done"))
    assert max(at_once) == 3


async def test_a_handler_that_raises_is_tried_again_until_it_is_dead(
    world: World, eventually: Eventually
) -> None:
    async def fail(run: Run) -> Outcome:
        raise RuntimeError("a bug")

    job = await world.submit(max_attempts=1)
    async with world.worker({"work": fail}):
        await eventually(is_state(world, job, "dead"))
    assert await world.tries(job) == [(1, "dead", "internal")]


async def test_a_worker_without_the_stores_master_key_costs_no_job_a_try(
    world: World, eventually: Eventually, tmp_path: Path
) -> None:
    """As after a rotation on another machine, until the new key file comes."""
    behind = Vault(open_ring(tmp_path, ciphertext_exists=False))
    job = await world.submit(max_attempts=1)
    tried = []

    async def read(run: Run) -> Outcome:
        tried.append(run.claim.id)
        await world.database.read(partial(sealing_key, vault=behind))
        return Done()

    async with world.worker({"work": read}, vault=behind):
        await eventually(lambda: tried)
        await eventually(is_state(world, job, "ready"))
        await asyncio.sleep(0.1)
        assert tried == [job]  # it does not ask for more before it has the key
        shutil.copy(world.vault.ring.path or "", tmp_path / "master.key")
        await eventually(is_state(world, job, "done"))


async def test_a_kind_nobody_handles_is_dead_not_stuck(world: World, eventually: Eventually) -> None:
    job = await world.submit(kind="mystery")
    async with world.worker({"work": succeed}):
        await eventually(is_state(world, job, "dead"))
    assert (await world.job(job)).reason == "unknown_kind"


async def test_a_delayed_retry_runs_when_its_time_comes(world: World, eventually: Eventually) -> None:
    async def second_time_lucky(run: Run) -> Outcome:
        return Retry("flaky", after=0.05) if run.claim.attempts == 1 else Done()

    job = await world.submit()
    async with world.worker({"work": second_time_lucky}):
        await eventually(is_state(world, job, "done"))
    assert [outcome for _, outcome, _ in await world.tries(job)] == ["retry", "done"]


async def test_a_long_run_is_renewed_past_its_lease(world: World, eventually: Eventually) -> None:
    async def outlast(run: Run) -> Outcome:
        await asyncio.sleep(1.6)
        return Done()

    job = await world.submit()
    async with world.worker({"work": outlast}, lease=1.2), world.worker({"work": outlast}, owner="other"):
        await eventually(is_state(world, job, "done"))
    assert await world.tries(job) == [(1, "done", "")]


# Cancelling.


async def politely(run: Run) -> Outcome:
    await run.cancelled.wait()
    return Done()


async def deaf(run: Run) -> Outcome:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return await last_for_ever(run)


@pytest.mark.parametrize(
    ("handler", "state"),
    [(politely, "done"), (last_for_ever, "cancelled"), (deaf, "cancelled")],
    ids=["a handler that listens", "one that does not", "one that ignores its cancellation"],
)
async def test_a_running_job_is_stopped(
    world: World, eventually: Eventually, handler: Callable[[Run], Awaitable[Outcome]], state: str
) -> None:
    job = await world.submit()
    async with world.worker({"work": handler}):
        await eventually(is_state(world, job, "running"))
        await world.cancel(job)
        await eventually(is_state(world, job, state), within=5)


async def test_cancelled_before_it_began_it_never_begins(world: World, eventually: Eventually) -> None:
    begun = []

    async def begin(run: Run) -> Outcome:
        begun.append(run)
        return Done()

    job = await world.submit()
    await world.cancel(job)
    async with world.worker({"work": begin}):
        await eventually(is_state(world, job, "cancelled"))
    assert begun == []


# Ending in order.


@pytest.mark.parametrize("handler", [last_for_ever, deaf], ids=["long", "deaf"])
async def test_a_graceful_stop_hands_jobs_back_without_costing_a_try(
    world: World, eventually: Eventually, handler: Callable[[Run], Awaitable[Outcome]]
) -> None:
    job = await world.submit(max_attempts=1)
    async with world.worker({"work": handler}):
        await eventually(is_state(world, job, "running"))
    row = await world.job(job)
    assert (row.state, row.attempts, row.owner) == ("ready", 0, None)
    assert await world.tries(job) == [(1, "snoozed", "worker.stopped")]


async def test_a_graceful_stop_lets_short_work_finish(world: World, eventually: Eventually) -> None:
    async def short(run: Run) -> Outcome:
        await asyncio.sleep(0.05)
        return Done()

    job = await world.submit()
    async with world.worker({"work": short}, stop_within=10):
        await eventually(is_state(world, job, "running"))
    assert await world.states(job) == ["done"]


async def test_a_graceful_stop_does_not_wait_for_what_never_ends(
    world: World, eventually: Eventually
) -> None:
    async def poll(run: Run) -> Outcome:
        run.endless = True
        return await last_for_ever(run)

    job = await world.submit()
    async with patiently(20), world.worker({"work": poll}, stop_within=60):
        await eventually(is_state(world, job, "running"))
    assert await world.states(job) == ["ready"]


@pytest.mark.parametrize("moment", range(6))
async def test_a_stop_in_the_middle_of_a_claim_strands_nothing(world: World, moment: int) -> None:
    jobs = [await world.submit(max_attempts=1) for _ in range(4)]
    async with world.worker({"work": last_for_ever}, stop_within=0):
        for _ in range(moment):
            await asyncio.sleep(0)
    assert set(await world.states(*jobs)) == {"ready"}
    assert [(await world.job(job)).attempts for job in jobs] == [0, 0, 0, 0]


# Losing the lease.


async def test_a_worker_that_lost_its_job_is_stopped_and_fenced(world: World, eventually: Eventually) -> None:
    begun, refused = [], []

    async def lose_it(run: Run) -> Outcome:
        begun.append(run)
        if run.claim.attempts > 1:
            return Done()
        await world.pass_time(10_000)  # as if this process had been stopped for longer than its lease
        try:
            await eventually(is_state(world, run.claim.id, "done"))
        finally:  # also when it is stopped before
            with pytest.raises(Fenced):
                await world.run(
                    events.append,
                    job_id=run.claim.id,
                    owner=run.claim.owner,
                    fence=run.claim.fence,
                    kind="error",
                )
            refused.append(run)
        return Done()

    job = await world.submit()
    async with world.worker({"work": lose_it}, lease=6000):
        await eventually(lambda: begun)  # the state may have come and gone
        async with world.worker({"work": lose_it}, owner="other", lease=6000):
            await eventually(lambda: refused)
    assert [outcome for _, outcome, _ in await world.tries(job)] == ["lost", "done"]


async def test_a_run_whose_job_was_taken_away_is_stopped_long_before_its_lease_is_renewed(
    world: World, eventually: Eventually
) -> None:
    ended = []

    async def work(run: Run) -> Outcome:
        try:
            return await last_for_ever(run)
        finally:
            ended.append(run)

    job = await world.submit()
    async with world.worker({"work": work}, lease=600):
        await eventually(is_state(world, job, "running"))
        taken = {"state": "cancelled", "owner": None, "fence": jobs.c.fence + 1}  # as a purge does
        await world.run(lambda c: c.execute(update(jobs).where(jobs.c.id == job).values(**taken)))
        await eventually(lambda: ended)


async def test_a_process_whose_loop_was_blocked_takes_its_job_up_again_and_ends_it_once(
    world: World, eventually: Eventually
) -> None:
    endings = []

    async def block_once(run: Run) -> Outcome:
        if run.claim.attempts == 1:
            time.sleep(0.6)
            await asyncio.sleep(0.6)
        endings.append(run.claim.fence)
        return Done()

    job = await world.submit(max_attempts=50)
    async with world.worker({"work": block_once}, lease=0.4), world.worker({}, owner="other", slots=0):
        await eventually(is_state(world, job, "done"))
    assert [outcome for _, outcome, _ in await world.tries(job)].count("done") == 1


class Interrupted:
    """A real database that fails at the first end of a run, before or after its commit."""

    def __init__(self, database: Database, when: str) -> None:
        self._database = database
        self.dialect = database.dialect
        self.signing = database.signing
        self.read, self.write_one = database.read, database.write_one
        self._when = when

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        verb = partial(verb, *args, **kwargs)
        when = self._when if getattr(verb, "func", None) is finish_runs else ""
        if when == "before":
            self._when = ""
            raise StoreUnavailable
        result = await self._database.write(verb)
        if when == "after":
            self._when = ""
            raise StoreUnavailable
        return result


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_job_whose_end_could_not_be_written_ends_when_it_can_be(
    world: World, eventually: Eventually, when: str
) -> None:
    async def work(run: Run) -> Outcome:
        return await last_for_ever(run) if run.claim.payload.get("long") else Done()

    await world.submit(payload={"long": True})
    job = await world.submit()
    world.database = Interrupted(world.database, when)
    async with world.worker({"work": work}, lease=600):
        await eventually(is_state(world, job, "done"))
    assert await world.tries(job) == [(1, "done", "")]


async def test_an_outage_of_the_store_costs_a_job_neither_a_try_nor_its_lease(
    world: World, eventually: Eventually
) -> None:
    world.database = store = Away(world.database)

    async def work(run: Run) -> Outcome:
        if run.claim.fence == 1:
            store.away = True
            await store.read(lambda c: None)
        return Done()

    job = await world.submit(max_attempts=1)
    async with world.worker({"work": work}, lease=600):
        await eventually(lambda: store.away)
        await store.come_back_after(0.5)
        await eventually(is_state(world, job, "done"))
    assert await world.tries(job) == [(1, "snoozed", OUTAGE), (1, "done", "")]


async def test_a_job_that_was_claimed_as_the_store_went_away_is_not_forgotten(
    world: World, eventually: Eventually
) -> None:
    world.database = Away(world.database, lost_claim=True)
    job = await world.submit(max_attempts=1)
    async with world.worker({"work": succeed}, lease=600):
        await eventually(is_state(world, job, "done"))
    assert await world.tries(job) == [(1, "snoozed", OUTAGE), (1, "done", "")]


async def test_after_an_outage_that_outlasts_the_leases_nobody_is_taken_for_silent(
    world: World, eventually: Eventually
) -> None:
    begun, back = asyncio.Event(), asyncio.Event()

    async def work(run: Run) -> Outcome:
        begun.set()
        await back.wait()
        return Done()

    real = world.database
    world.database = store = Away(real)
    job = await world.submit(max_attempts=1)
    async with world.worker({"work": work}), world.worker({}, owner="other", slots=0):
        await begun.wait()
        store.away = True
        await asyncio.sleep(0.3)  # both have noticed
        world.database = real
        await world.pass_time(100)
        await store.come_back_after(0.3)
        await asyncio.sleep(0.3)  # time enough for a silent worker's job to be taken away
        back.set()
        await eventually(is_state(world, job, "done"))
    assert await world.tries(job) == [(1, "done", "")]


async def test_a_job_that_the_store_always_fails_is_dead_in_the_end(world: World) -> None:
    job = await world.submit(max_attempts=1)
    delays = []
    while await world.state(job) != "dead":
        await world.end(await world.claim_one(), Snooze(0, OUTAGE))
        row = await world.job(job)
        delays.append(round(row.run_at - time.time()))
        await world.pass_time(2000)
        await world.run(queue.stage)
    assert len(delays) == MAX_OUTAGES + 1
    assert delays[:4] == [0, 1, 3, 7]


class Slow(Interrupted):
    """A real database that takes its time over the ends of runs."""

    async def write(self, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        verb = partial(verb, *args, **kwargs)
        if getattr(verb, "func", None) is finish_runs:
            await asyncio.sleep(0.3)
        return await super().write(verb)


async def test_a_run_cancelled_again_and_again_while_it_ends_does_not_hold_up_other_ends(
    world: World, eventually: Eventually
) -> None:
    world.database = Slow(world.database, "")
    first = await world.submit()
    async with world.worker({"work": succeed}):
        await eventually(is_state(world, first, "running"))
        for _ in range(4):
            await asyncio.sleep(0.02)
            for task in asyncio.all_tasks():
                if task.get_name() == f"job-{first}":
                    task.cancel()
        second = await world.submit()
        await eventually(is_state(world, second, "done"))
    assert await world.states(first) == ["done"]
