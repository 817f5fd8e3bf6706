"""Tasks that a run delegates: made once, bounded, and told to the run in order."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import select, update

from gofer.agent.outcome import Delegated
from gofer.goals.tasks import StoreDelegations, delegate_tasks, finish_task, load_task
from gofer.jobs.outcome import Cancel, Dead, WaitForJobs
from gofer.jobs.queue import WORKER, Claim
from gofer.store.tables import jobs, spends, tasks
from gofer.tool import NewTask
from support.world import World


def wanted(count: int = 2, call_id: str = "call", **values: Any) -> Delegated:
    made = tuple(NewTask("research", f"t{number}", "Look.") for number in range(1, count + 1))
    terms = {"included_to": 1, "trust": "member", "narrowed": False, "background": False, "budget": 900}
    return Delegated(call_id, made, **{**terms, **values})


async def delegate(world: World, claim: Claim, this: Delegated) -> None:
    verb = partial(delegate_tasks, vault=world.vault, claim=claim, wanted=this, message_seq=1)
    await world.end(claim, WaitForJobs(tuple(await world.run(verb))))


async def test_a_run_that_was_killed_while_it_delegated_makes_each_task_and_job_once(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    verb = partial(delegate_tasks, vault=world.vault, claim=claim, wanted=wanted(), message_seq=1)
    await world.run(verb)  # and dies here, before its jobs are made
    await world.pass_time(3600)
    await world.sweep()
    again = await world.claim_one()
    await delegate(world, again, wanted())
    rows = await world.rows(select(tasks).order_by(tasks.c.number))
    assert [(row.number, row.state, row.tries) for row in rows] == [(1, "queued", 1), (2, "queued", 1)]
    assert await world.count(jobs, jobs.c.kind == "task") == 2
    assert {row.job_id for row in rows} == {
        row.id for row in await world.rows(select(jobs.c.id).where(jobs.c.kind == "task"))
    }


async def test_a_task_has_the_runs_trust_and_a_share_of_its_money_and_neither_can_be_widened(
    world: World,
) -> None:
    await world.say()
    await delegate(world, await world.claim_one(), wanted(3, narrowed=True))
    await world.run(lambda c: c.execute(update(tasks).values(kind="execution")))
    (row, *_) = await world.rows(select(tasks))
    task = await world.run(lambda c: load_task(c, world.vault, row.id))
    assert (task.kind, task.trust, task.narrowed, task.budget) == ("research", "member", True, 300)


async def test_results_are_told_in_order_once_all_are_over(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    await delegate(world, claim, wanted())
    delegations = StoreDelegations(world.database, world.vault, claim, 32)
    first, second = await world.rows(select(tasks).order_by(tasks.c.number))
    result = {"outcome": "done", "summary": "Second.", "artefacts": ["a.txt"], "narrowed": True}
    await world.run(lambda c: finish_task(c, world.vault, second.id, "done", result, cost=0.5))
    assert await delegations.results("call") is None
    for each in await world.claim(2, pool=WORKER):
        await world.end(each)  # the first job ends without a result
    found = await delegations.results("call")
    assert found is not None
    assert found.text.index("State: failed") < found.text.index("Second.") < found.text.index("a.txt")
    assert (found.failed, found.untrusted, found.cost) == (False, True, 500_000)
    assert await world.state(claim.id) == "ready"
    assert await world.count(spends) == 0
    assert first.id != second.id


async def test_more_tasks_than_may_wait_are_refused_with_a_sentence(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    delegations = StoreDelegations(world.database, world.vault, claim, 5)
    assert await delegations.refusal(4) == ""
    await delegate(world, claim, wanted(4))
    assert await delegations.refusal(1) == ""
    said = await delegations.refusal(2)
    assert "4 tasks of this agent wait already" in said
    assert "try again in 30 seconds" in said


async def test_cancelling_the_run_drops_its_tasks(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    await delegate(world, claim, wanted())
    running = await world.claim_one(pool=WORKER)
    await world.cancel(claim.id)
    assert not await world.claim(pool=WORKER), "nobody has to take one that has not begun, only to end it"
    await world.end(running, Cancel("cancelled"))
    rows = await world.rows(select(tasks))
    assert [(row.state, row.reason) for row in rows] == [("dropped", "cancelled")] * 2


async def test_tasks_of_a_run_that_died_before_it_made_their_jobs_do_not_wait_for_ever(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    await world.run(partial(delegate_tasks, vault=world.vault, claim=claim, wanted=wanted(), message_seq=1))
    await world.sweep()
    assert {row.state for row in await world.rows(select(tasks.c.state))} == {"queued"}
    await world.end(claim, Dead("hopeless"))
    assert await world.sweep() == 0
    rows = await world.rows(select(tasks))
    assert [(row.state, row.reason) for row in rows] == [("dropped", "run.ended")] * 2
