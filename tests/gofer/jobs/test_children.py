"""Jobs that wait for other jobs: made once, readied once, stopped together, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.errors import Conflict
from gofer.jobs import control
from gofer.jobs.outcome import Cancel, Dead, Done, NewJob, Retry, Snooze, WaitForJobs
from gofer.jobs.queue import AGENT, SERVICE, WORKER, Claim, TaskBounds
from gofer.jobs.worker import Run
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import conversations, jobs
from support.patience import eventually
from support.world import World


def new(number: int, **values: Any) -> NewJob:
    return NewJob(kind="work", lane=f"child-{number}", unique_key=f"child-{number}", **values)


async def parent(world: World, *children: NewJob, **values: Any) -> Claim:
    """A job that has begun to wait for children."""
    await world.say()
    claim = await world.claim_one()
    await world.end(claim, WaitForJobs(children, **values))
    return claim


async def children(world: World, of: Claim) -> list[Any]:
    return await world.rows(select(jobs).where(jobs.c.parent_id == of.id).order_by(jobs.c.id))


async def test_a_job_waits_for_all_its_children_without_a_lease_and_is_readied_once(world: World) -> None:
    waiting = await parent(world, new(1), new(2))
    row = await world.job(waiting.id)
    assert (row.state, row.owner, row.lease_until, row.attempts) == ("waiting", None, None, 0)
    first, second = await world.claim(5, pool=WORKER)
    assert first.conversation_id == waiting.conversation_id
    assert (await world.end(first)).woke is False
    assert await world.state(waiting.id) == "waiting"
    assert (await world.end(second, Dead("hopeless"))).woke is True
    assert await world.state(waiting.id) == "ready"
    assert (await world.kinds_of_events(waiting.id)).count("job.woken") == 1
    assert await world.sweep() == 0


async def test_a_child_that_is_tried_again_is_still_waited_for(world: World) -> None:
    waiting = await parent(world, new(1))
    await world.end(await world.claim_one(pool=WORKER), Retry("flaky", after=0))
    assert await world.state(waiting.id) == "waiting"
    await world.end(await world.claim_one(pool=WORKER))
    assert await world.state(waiting.id) == "ready"


async def test_a_run_that_asks_again_makes_its_children_once(world: World) -> None:
    waiting = await parent(world, new(1), new(2))
    await world.run(control.signal, job_id=waiting.id, by="test")
    await world.end(await world.claim_one(), WaitForJobs((new(1), new(2))))
    assert [row.lane for row in await children(world, waiting)] == ["child-1", "child-2"]
    assert await world.state(waiting.id) == "waiting"
    for claim in await world.claim(2, pool=WORKER):
        await world.end(claim)
    again = await world.claim_one()
    assert (await world.end(again, WaitForJobs((new(1), new(2))))).state == "ready"
    assert len(await children(world, waiting)) == 2


async def test_waiting_for_any_ends_with_the_next_child_and_at_once_if_one_ended_unseen(world: World) -> None:
    waiting = await parent(world, new(1), new(2), any=True)
    one, two = [row.id for row in await children(world, waiting)]
    first, second = await world.claim(2, pool=WORKER)
    await world.end(first)
    running = await world.claim_one()
    assert running.id == waiting.id
    await world.end(second)
    # The run has seen the first end only: it must not wait for the second, which ended while it ran.
    assert (await world.end(running, WaitForJobs(waits_for=(two,), any=True))).state == "ready"
    ended = await world.end(await world.claim_one(), WaitForJobs((new(3),), waits_for=(), any=True))
    assert ended.state == "waiting"
    assert [row.id for row in await children(world, waiting)][:2] == [one, two]


async def test_a_message_does_not_wake_a_job_that_waits_for_jobs_and_is_answered_afterwards(
    world: World,
) -> None:
    waiting = await parent(world, new(1))
    await world.say("and another thing")
    assert await world.state(waiting.id) == "waiting"
    assert await world.sweep() == 0
    await world.end(await world.claim_one(pool=WORKER))
    assert (await world.answer("both", to=1)).id == waiting.id
    assert (await world.answer("the other thing")).id != waiting.id


async def test_cancelling_the_parent_stops_running_ready_and_blocked_children(world: World) -> None:
    waiting = await parent(world, new(1), new(2), NewJob("work", "child-1", "blocked"))
    running = await world.claim_one(pool=WORKER)
    await world.cancel(waiting.id)
    rows = await children(world, waiting)
    assert [row.cancel_requested for row in rows] == [True, True, True]
    assert [row.state for row in rows] == ["running", "ready", "cancelled"]
    await world.end(await world.claim_one(), Cancel("cancelled"))
    await world.end(running, Cancel("cancelled"))
    await world.end(await world.claim_one(pool=WORKER), Cancel("cancelled"))
    assert await world.states(waiting.id, *[row.id for row in rows]) == ["cancelled"] * 4
    assert await world.sweep() == 0


@pytest.mark.parametrize("outcome", [Done(), Dead("hopeless")], ids=["done", "dead"])
async def test_the_end_of_a_parent_stops_the_children_it_left(world: World, outcome: Any) -> None:
    waiting = await parent(world, new(1))
    await world.run(control.signal, job_id=waiting.id, by="test")
    await world.end(await world.claim_one(), outcome)
    (child,) = await children(world, waiting)
    assert child.cancel_requested
    await world.end(await world.claim_one(pool=WORKER), Cancel("cancelled"))
    assert await world.state(waiting.id) == outcome_state(outcome)


def outcome_state(outcome: Any) -> str:
    return "done" if isinstance(outcome, Done) else "dead"


async def test_a_parent_that_is_cancelled_while_it_runs_makes_no_children(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    await world.cancel(claim.id)
    await world.end(claim, WaitForJobs((new(1),)))
    assert await world.state(claim.id) == "ready"
    assert await children(world, claim) == []


async def test_a_cancelled_blocked_child_readies_its_parent(world: World) -> None:
    waiting = await parent(world, new(1), NewJob("work", "child-1", "blocked"))
    _, blocked = await children(world, waiting)
    await world.end(await world.claim_one(pool=WORKER))
    claim = await world.claim_one(pool=WORKER)
    assert claim.id == blocked.id
    await world.cancel(blocked.id)
    await world.end(claim, Cancel("cancelled"))
    assert await world.state(waiting.id) == "ready"


async def test_maintenance_readies_a_parent_whose_children_are_gone(world: World) -> None:
    waiting = await parent(world, new(1))
    await world.run(
        lambda c: c.execute(update(jobs).where(jobs.c.parent_id == waiting.id).values(parent_id=None))
    )
    assert await world.state(waiting.id) == "waiting"
    assert await world.sweep() == 1
    assert await world.state(waiting.id) == "ready"


async def test_a_lost_child_is_rescued_and_readies_its_parent_when_it_is_given_up(world: World) -> None:
    waiting = await parent(world, new(1, max_attempts=2))
    for _ in range(2):
        await world.claim_one(pool=WORKER)
        await world.pass_time(3600)
        assert await world.sweep() == 1
    (child,) = await children(world, waiting)
    assert (child.state, child.reason) == ("dead", "worker.lost")
    assert await world.state(waiting.id) == "ready"


async def test_a_dead_child_is_redriven_only_while_somebody_waits_for_it(world: World) -> None:
    waiting = await parent(world, new(1), new(2))
    first, second = await world.claim(2, pool=WORKER)
    await world.end(first, Dead("hopeless"))
    await world.redrive(first.id)
    await world.end(await world.claim_one(pool=WORKER), Dead("hopeless"))
    await world.end(second)
    assert await world.state(waiting.id) == "ready"
    with pytest.raises(Conflict, match="Nobody waits for job"):
        await world.redrive(first.id)


async def test_a_signal_ends_a_snooze_and_is_not_lost_on_a_run_that_is_about_to_pause(world: World) -> None:
    job = await world.submit()
    await world.end(await world.claim_one(), Snooze(3600))
    assert await world.run(control.signal, job_id=job, by="test") is True
    claim = await world.claim_one()
    assert await world.run(control.signal, job_id=job, by="test") is True
    assert (await world.end(claim, Snooze(3600))).state == "ready"
    assert (await world.end(await world.claim_one(), Snooze(3600))).state == "scheduled"
    await world.run(control.signal, job_id=job, by="test")
    await world.work()
    assert await world.run(control.signal, job_id=job, by="test") is False


async def test_ends_of_parent_and_children_at_the_same_moment_leave_nobody_waiting(world: World) -> None:
    """The parent begins to wait while its children end, in every interleaving that the database makes."""
    for round_ in range(8):
        await world.say(room=f"room-{round_}")
        claim = await world.claim_one()
        await world.end(claim, WaitForJobs(tuple(new(10 * round_ + n) for n in range(3)), any=True))
        running = await world.claim(3, pool=WORKER)
        await world.run(control.signal, job_id=claim.id, by="test")
        again = await world.claim_one()
        seen = tuple(each.id for each in running)
        await asyncio.gather(
            *(world.end(each) for each in running),
            world.end(again, WaitForJobs(waits_for=seen, any=round_ % 2 == 0)),
        )
        assert await world.state(claim.id) == "ready"
        await world.end(await world.claim_one())


# The worker's slots.


async def test_tasks_have_slots_of_their_own_and_bounds_over_all_processes(world: World) -> None:
    for number in range(6):
        await world.submit(pool=WORKER, agent_id="ant" if number < 4 else "bee")
    await world.submit()
    bounds = TaskBounds(instance=3, agent=2)
    first = await world.claim(10, pool=WORKER, tasks=bounds)
    assert [claim.agent_id for claim in first] == ["ant", "ant", "bee"]
    assert await world.claim(10, pool=WORKER, owner="worker-2", tasks=bounds) == []
    assert len(await world.claim(10)) == 1
    await world.end(first[0])
    (next_one,) = await world.claim(10, pool=WORKER, tasks=bounds)
    assert next_one.agent_id == "ant"


async def test_a_worker_claims_tasks_beside_answers_in_the_same_round(world: World) -> None:
    began: list[str] = []

    async def handler(run: Run) -> Done:
        began.append(run.claim.lane)
        return Done()

    for number in range(3):
        await world.submit(f"task-{number}", pool=WORKER)
        await world.submit(f"answer-{number}")
    slots = {AGENT: 4, SERVICE: 4, WORKER: 1}
    async with world.worker({"work": handler}, pools=slots):
        await eventually(lambda: len(began) == 6)


async def test_cancel_reaches_a_running_child_soon(world: World) -> None:
    stopped = asyncio.Event()

    async def patient(run: Run) -> Any:
        if run.claim.attempts == 1 and run.claim.kind == "answer" and not stopped.is_set():
            return WaitForJobs((new(1),))
        await run.cancelled.wait()
        stopped.set()
        return Cancel("cancelled")

    taken = await world.say()
    slots = {AGENT: 4, SERVICE: 4, WORKER: 2}
    async with world.worker({"answer": patient, "work": patient}, pools=slots):
        query = select(jobs.c.id, jobs.c.state).where(jobs.c.kind == "work")

        async def runs() -> bool:
            return [row.state for row in await world.rows(query)] == ["running"]

        await eventually(runs)
        await world.run(
            partial(control.cancel_conversation, conversation_id=str(taken.conversation_id), by="test")
        )
        await asyncio.wait_for(stopped.wait(), 30)


async def test_only_a_job_of_a_conversation_can_wait_for_jobs(world: World) -> None:
    await world.submit()
    with pytest.raises(ValueError, match="conversation"):
        await world.end(await world.claim_one(), WaitForJobs((new(1),)))
    assert await world.count(conversations) == 0
    assert FIRST_WORKSPACE
