"""Submitting and claiming: order, priority, lanes, delays, caps; the same on both databases."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy.exc import IntegrityError

from gofer.errors import StoreUnavailable
from gofer.jobs import maintenance, queue
from gofer.jobs.outcome import Snooze
from gofer.jobs.queue import SERVICE
from gofer.store.tables import jobs
from support.world import World


async def test_jobs_are_claimed_in_the_order_they_came(world: World) -> None:
    made = [await world.submit() for _ in range(3)]
    assert [claim.id for claim in await world.claim(limit=10)] == made


async def test_a_lower_number_runs_first(world: World) -> None:
    later, first = await world.submit(priority=5), await world.submit(priority=-1)
    assert [claim.id for claim in await world.claim(limit=2)] == [first, later]


async def test_a_claimed_job_is_not_claimed_again(world: World) -> None:
    await world.submit()
    assert len(await world.claim(limit=5)) == 1
    assert await world.claim(limit=5, owner="worker-2") == []


async def test_a_claim_takes_no_more_than_its_limit(world: World) -> None:
    for _ in range(5):
        await world.submit()
    assert len(await world.claim(limit=2)) == 2


async def test_pools_do_not_take_each_others_jobs(world: World) -> None:
    await world.submit(pool=SERVICE)
    assert await world.claim() == []
    assert len(await world.claim(pool=SERVICE)) == 1


async def test_concurrent_claimers_share_the_jobs_without_doubling(world: World) -> None:
    made = {await world.submit() for _ in range(40)}
    rounds = await asyncio.gather(*(world.claim(limit=5, owner=f"worker-{n}") for n in range(12)))
    taken = [claim.id for claims in rounds for claim in claims]
    assert len(taken) == len(set(taken))
    assert set(taken) <= made
    assert len(taken) + len(await world.claim(limit=100)) == 40


async def test_one_lane_runs_one_job_at_a_time_in_order(world: World) -> None:
    made = [await world.submit("kitchen") for _ in range(3)]
    assert await world.states(*made) == ["ready", "blocked", "blocked"]
    for expected in made:
        claim = await world.claim_one()
        assert claim.id == expected
        assert await world.claim() == []
        await world.end(claim)


async def test_another_lane_is_not_held_up(world: World) -> None:
    await world.submit("kitchen")
    await world.submit("kitchen")
    other = await world.submit("garden")
    assert other in [claim.id for claim in await world.claim(limit=5)]


async def test_the_database_itself_refuses_a_second_live_job_in_a_lane(world: World) -> None:
    await world.submit("kitchen")
    blocked = await world.submit("kitchen")
    with pytest.raises((IntegrityError, StoreUnavailable)):
        await world.run(lambda c: c.execute(jobs.update().where(jobs.c.id == blocked).values(state="ready")))


async def test_concurrent_submits_to_one_lane_leave_one_ready(world: World) -> None:
    made = await asyncio.gather(*(world.submit("kitchen") for _ in range(10)))
    assert sorted(await world.states(*made)) == ["blocked"] * 9 + ["ready"]


async def test_a_delayed_job_waits_for_its_time(world: World) -> None:
    job = await world.submit(delay=60)
    assert await world.run(queue.stage) == (0, pytest.approx(60, abs=30))
    assert await world.claim() == []
    await world.pass_time(61)
    assert (await world.run(queue.stage))[0] == 1
    assert (await world.claim_one()).id == job


async def test_a_clock_that_goes_back_holds_up_nobody_behind_a_lane(world: World) -> None:
    _, plain, delayed = [await world.submit("kitchen", delay=delay) for delay in (0, 0, 50)]
    hour = {each: jobs.c[each] + 3600 for each in ("created_at", "run_at")}
    await world.run(lambda c: c.execute(jobs.update().values(**hour)))
    await world.work()
    assert await world.states(plain, delayed) == ["ready", "blocked"]
    await world.work()
    assert await world.state(delayed) == "scheduled"
    assert (await world.job(delayed)).run_at < time.time() + 60


async def test_a_delayed_job_behind_a_lane_keeps_its_delay(world: World) -> None:
    await world.submit("kitchen")
    delayed = await world.submit("kitchen", delay=60)
    await world.work()
    assert await world.states(delayed) == ["scheduled"]


async def test_a_unique_key_is_used_once(world: World) -> None:
    assert await world.submit(unique_key="monday")
    assert await world.submit(unique_key="monday") == 0
    assert await world.count(jobs) == 1


async def test_each_step_of_a_job_is_an_event_with_its_number(world: World) -> None:
    job = await world.submit()
    await world.work()
    assert await world.kinds_of_events(job) == ["job.created", "attempt.started", "attempt.finished"]


# Caps.


@pytest.mark.parametrize("limit", [1, 10])
async def test_the_global_cap_holds_over_all_workers(world: World, limit: int) -> None:
    for _ in range(12):
        await world.submit()
    claimers = (world.claim(limit=limit, owner=f"worker-{n}", max_running=3) for n in range(6))
    assert sum(map(len, await asyncio.gather(*claimers))) == 3


async def test_an_agents_cap_holds_and_others_pass_it(world: World) -> None:
    busy, idle = await world.agent("busy", max_running=2), await world.agent("idle")
    for _ in range(5):
        await world.submit(agent_id=busy)
    other = await world.submit(agent_id=idle)
    rounds = await asyncio.gather(*(world.claim(limit=4, owner=f"worker-{n}") for n in range(4)))
    taken = [claim for claims in rounds for claim in claims]
    assert sorted(claim.agent_id or "" for claim in taken) == sorted([busy, busy, idle])
    assert other in [claim.id for claim in taken]


async def test_a_connections_cap_holds_until_one_ends(world: World) -> None:
    capped = await world.connect("capped", max_running=1)
    first, second = await world.submit(connection_id=capped), await world.submit(connection_id=capped)
    claim = await world.claim_one(limit=5)
    assert claim.id == first
    await world.end(claim)
    assert [claim.id for claim in await world.claim(limit=5)] == [second]


async def test_a_reply_is_sent_while_its_connection_runs_as_many_jobs_as_it_may(world: World) -> None:
    capped = await world.connect("capped", max_running=1)
    await world.submit(connection_id=capped)
    await world.claim_one()
    errand = await world.submit(connection_id=capped, pool=SERVICE)
    assert [claim.id for claim in await world.claim(pool=SERVICE, limit=5)] == [errand]


# Leases.


async def test_renewing_keeps_a_job_and_says_what_is_held(world: World) -> None:
    await world.submit()
    claim = await world.claim_one(lease=30)
    await world.pass_time(25)
    assert await world.run(queue.renew, owner=claim.owner, lease=30, held=[claim.id]) == {
        claim.id: (claim.fence, False, False)
    }
    await world.pass_time(25)
    assert await world.sweep() == 0


async def test_only_what_is_in_hand_is_renewed(world: World) -> None:
    """A job whose end could not be written must not be kept from others by its worker's other jobs."""
    for _ in range(2):
        await world.submit()
    kept, dropped = await world.claim(limit=2)
    await world.pass_time(31)
    await world.run(queue.renew, owner=kept.owner, lease=30, held=[kept.id])
    assert [claim.id for claim in await world.database.read(maintenance.lost_jobs)] == [dropped.id]


async def test_a_snoozed_job_shows_in_no_renewal(world: World) -> None:
    await world.submit()
    claim = await world.claim_one()
    await world.end(claim, Snooze(60))
    assert await world.run(queue.renew, owner=claim.owner, lease=30, held=[claim.id]) == {}


async def test_the_number_waiting_counts_what_is_unfinished(world: World) -> None:
    for lane in ("a", "a", "b"):
        await world.submit(lane)
    await world.work()
    assert await world.database.read(queue.count_waiting) == 2
