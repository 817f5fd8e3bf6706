"""What people do to jobs: cancelling in every state, and questions that a job waits for."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from gofer.errors import Conflict, NotFound
from gofer.jobs import control
from gofer.jobs.outcome import PAUSE_SECONDS, PAUSED, Cancel, Done, Outcome, Retry, Snooze, Wait
from gofer.jobs.queue import Claim, held
from gofer.store.tables import questions
from support.world import World


async def test_cancelling_a_ready_job_lets_a_worker_end_it(world: World) -> None:
    job = await world.submit()
    assert await world.cancel(job) == "ready"
    assert (await world.claim_one()).cancel_requested


async def test_cancelling_a_scheduled_job_brings_it_forward(world: World) -> None:
    job = await world.submit(delay=3600)
    assert await world.cancel(job) == "ready"
    assert (await world.claim_one()).cancel_requested


async def test_cancelling_a_blocked_job_ends_it_at_once(world: World) -> None:
    first, second, third = [await world.submit("kitchen") for _ in range(3)]
    assert await world.cancel(second) == "cancelled"
    await world.work()
    assert await world.states(first, second, third) == ["done", "cancelled", "ready"]


async def test_cancelling_a_running_job_is_seen_by_its_worker(world: World) -> None:
    job = await world.submit()
    claim = await world.claim_one()
    assert await world.cancel(job) == "running"
    assert await world.run(held, owner=claim.owner) == {job: (claim.fence, True, False)}
    await world.end(claim, Cancel("cancelled"))
    assert await world.states(job) == ["cancelled"]


@pytest.mark.parametrize("pause", [Retry("flaky", after=3600), Snooze(3600), Wait("Which one?")], ids=repr)
async def test_a_run_that_pauses_while_it_is_cancelled_is_ended_at_once(world: World, pause: Outcome) -> None:
    job = await world.submit()
    claim = await world.claim_one()
    await world.cancel(job)
    assert (await world.end(claim, pause)).woke
    assert (await world.claim_one()).cancel_requested
    assert await world.count(questions) == 0


async def test_a_run_that_finishes_while_it_is_cancelled_is_done(world: World) -> None:
    job = await world.submit()
    claim = await world.claim_one()
    await world.cancel(job)
    await world.end(claim, Done())
    assert await world.states(job) == ["done"]


async def test_what_has_ended_cannot_be_cancelled(world: World) -> None:
    job = await world.submit()
    await world.work()
    with pytest.raises(Conflict, match="already ended"):
        await world.cancel(job)
    with pytest.raises(NotFound):
        await world.cancel(job + 1000)


async def test_a_cancelled_job_can_be_redriven_and_runs(world: World) -> None:
    job = await world.submit()
    await world.cancel(job)
    await world.end(await world.claim_one(), Cancel("cancelled"))
    await world.redrive(job)
    assert not (await world.claim_one()).cancel_requested


# Questions.


async def asking(world: World, **values: object) -> tuple[Claim, str]:
    """A job that waits for an answer, and the question's id."""
    claim = await world.claim_one()
    await world.end(claim, Wait("Which one?", **values))  # type: ignore[arg-type]
    open_ones = select(questions.c.id).where(
        questions.c.job_id == claim.id, questions.c.answered_at.is_(None)
    )
    return claim, (await world.rows(open_ones))[0][0]


async def test_a_waiting_job_holds_its_lane_but_no_slot(world: World) -> None:
    await world.submit("kitchen")
    claim, _ = await asking(world)
    behind = await world.submit("kitchen")
    assert await world.states(claim.id, behind) == ["waiting", "blocked"]
    assert await world.claim(limit=5, max_running=1) == []


async def test_an_answer_wakes_the_job_without_costing_a_try(world: World) -> None:
    await world.submit(max_attempts=1)
    claim, question = await asking(world)
    assert (
        await world.run(control.answer, vault=world.vault, question_id=question, text="blue", by="ann")
        == claim.id
    )
    again = await world.claim_one()
    assert (again.id, again.attempts) == (claim.id, 1)


async def test_a_question_is_answered_once(world: World) -> None:
    await world.submit()
    _, question = await asking(world)
    await world.run(control.answer, vault=world.vault, question_id=question, text="blue", by="ann")
    with pytest.raises(Conflict, match="no longer open"):
        await world.run(control.answer, vault=world.vault, question_id=question, text="red", by="bob")
    with pytest.raises(NotFound):
        await world.run(control.answer, vault=world.vault, question_id="q_none", text="red", by="bob")


async def test_an_unanswered_question_expires_and_the_job_goes_on(world: World) -> None:
    job = await world.submit()
    await asking(world, expires_after=60)
    assert await world.run(control.expire_questions) == 0
    await world.pass_time(61)
    assert await world.run(control.expire_questions) == 1
    assert "question.expired" in await world.kinds_of_events(job)
    assert (await world.claim_one()).id == job


async def test_an_old_question_does_not_end_the_wait_for_a_new_one(world: World) -> None:
    job = await world.submit()
    _, first = await asking(world, expires_after=60)
    await world.run(control.answer, vault=world.vault, question_id=first, text="blue", by="ann")
    await asking(world)
    await world.pass_time(61)
    assert await world.run(control.expire_questions) == 0
    assert await world.states(job) == ["waiting"]


async def test_cancelling_a_waiting_job_closes_its_question(world: World) -> None:
    job = await world.submit()
    _, question = await asking(world)
    assert await world.cancel(job) == "ready"
    with pytest.raises(Conflict):
        await world.run(control.answer, vault=world.vault, question_id=question, text="blue", by="ann")
    assert (await world.claim_one()).cancel_requested


PAUSE = Snooze(PAUSE_SECONDS, PAUSED)


async def test_a_paused_run_sleeps_until_it_is_resumed(world: World) -> None:
    job = await world.submit(kind="answer")
    assert await world.run(control.pause, job_id=job, by="ann") == "scheduled"
    assert await world.run(control.pause, job_id=job, by="ann") == "scheduled"
    assert not await world.run(control.signal, job_id=job, by="ann")
    await world.pass_time(86400 * 30)
    assert await world.claim() == []
    assert await world.run(control.resume, job_id=job, by="ann") == "ready"
    with pytest.raises(Conflict, match="not paused"):
        await world.run(control.resume, job_id=job, by="ann")
    await world.work()
    assert await world.states(job) == ["done"]
    with pytest.raises(Conflict, match="cannot be paused"):
        await world.run(control.pause, job_id=job, by="ann")


@pytest.mark.parametrize("end", [PAUSE, Retry("flaky"), Retry("flaky", after=60), Snooze(0)], ids=repr)
async def test_a_run_that_is_paused_while_it_works_sleeps_however_its_try_ends(
    world: World, end: Outcome
) -> None:
    job = await world.submit(kind="answer")
    claim = await world.claim_one()
    assert await world.run(control.pause, job_id=job, by="ann") == "running"
    assert await world.run(held, owner=claim.owner) == {job: (claim.fence, False, True)}
    await world.end(claim, end)
    assert control.is_paused(await world.job(job))
    assert await world.claim() == []
    assert await world.run(control.resume, job_id=job, by="ann") == "ready"
    await world.work()
    assert await world.states(job) == ["done"]


async def test_a_run_that_is_paused_while_it_asks_sleeps_although_a_message_came(world: World) -> None:
    first = await world.say("Do it.")
    claim = await world.claim_one()
    await world.run(control.pause, job_id=claim.id, by="ann")
    await world.say("Said while it was thinking about what to ask.")
    await world.end(claim, Wait("Which one?", "call-1", seen_to=first.seq))
    assert control.is_paused(await world.job(claim.id))
    assert await world.claim() == []


async def test_a_run_that_is_paused_and_lost_sleeps_too(world: World) -> None:
    job = await world.submit(kind="answer")
    await world.claim_one(lease=30)
    await world.run(control.pause, job_id=job, by="ann")
    await world.pass_time(31)
    assert await world.sweep() == 1
    assert control.is_paused(await world.job(job))


async def test_a_run_that_is_resumed_before_it_has_stopped_goes_on(world: World) -> None:
    job = await world.submit(kind="answer")
    claim = await world.claim_one()
    await world.run(control.pause, job_id=job, by="ann")
    assert await world.run(control.resume, job_id=job, by="ann") == "running"
    await world.end(claim, PAUSE)
    assert await world.states(job) == ["ready"]


async def test_a_paused_run_is_cancelled_as_any_other_and_one_that_waits_is_not_paused(world: World) -> None:
    job, asking = await world.submit(kind="answer"), await world.submit(kind="answer")
    await world.run(control.pause, job_id=job, by="ann")
    assert await world.cancel(job) == "ready"
    with pytest.raises(Conflict, match="cannot be paused"):
        await world.run(control.pause, job_id=job, by="ann")
    await world.end(await world.claim_one(), Cancel("cancelled"))
    await world.end(await world.claim_one(), Wait("Which one?"))
    with pytest.raises(Conflict, match="waits already"):
        await world.run(control.pause, job_id=asking, by="ann")
    with pytest.raises(Conflict, match="no run"):
        await world.run(control.pause, job_id=await world.submit(), by="ann")
