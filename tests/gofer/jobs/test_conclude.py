"""How runs end: every outcome, the fence on every write, and jobs whose worker went silent."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import select, update

from gofer.errors import Conflict, Fenced, NotFound
from gofer.jobs import finish as ending
from gofer.jobs import maintenance, queue
from gofer.jobs.finish import FinishedRun
from gofer.jobs.outcome import Cancel, Dead, Done, Outcome, Retry, Snooze, Wait
from gofer.jobs.queue import Claim
from gofer.outbox import ledger
from gofer.outbox.ledger import Part
from gofer.store import events
from gofer.store.tables import ReplyState, messages, questions
from gofer.store.tables import events as event_rows
from support.world import World


@pytest.mark.parametrize(
    ("outcome", "state", "tries"),
    [
        (Done(), "done", 1),
        (Retry("flaky", after=0), "ready", 1),
        (Retry("flaky", after=9), "scheduled", 1),
        (Retry("flaky"), "scheduled", 1),
        (Snooze(0), "ready", 0),
        (Snooze(9), "scheduled", 0),
        (Wait("Which one?"), "waiting", 0),
        (Cancel("asked"), "cancelled", 1),
        (Dead("hopeless"), "dead", 1),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | int) else str(value),
)
async def test_an_outcome_decides_the_state_and_what_the_try_costs(
    world: World, outcome: Outcome, state: str, tries: int
) -> None:
    job = await world.submit()
    await world.end(await world.claim_one(), outcome)
    row = await world.job(job)
    assert (row.state, row.attempts, row.owner, row.lease_until) == (state, tries, None, None)
    assert (row.finished_at is not None) == (state in ("done", "cancelled", "dead"))


async def test_a_job_dies_after_its_last_try_and_keeps_its_history(world: World) -> None:
    job = await world.submit(max_attempts=3)
    for _ in range(3):
        await world.end(await world.claim_one(), Retry("flaky", after=0))
    assert await world.states(job) == ["dead"]
    assert await world.tries(job) == [(1, "retry", "flaky"), (2, "retry", "flaky"), (3, "dead", "flaky")]


async def test_that_it_takes_longer_is_said_once_in_a_jobs_life(world: World) -> None:
    await world.say("Now?")
    draft = await world.draft("Later.", kind="note")
    asking = await world.claim_one()
    await world.end(asking, Wait("Which one?", drafts=(await world.draft("Which one?", kind="note"),)))
    await world.say("That one.")
    for _ in range(3):
        assert (await world.end(await world.claim_one(), Snooze(9, drafts=(draft,)))).state == "scheduled"
        await _go_on(world)
    lost = await world.claim_one()
    await world.pass_time(3600)
    await world.sweep()
    await world.end(await world.claim_one(), Snooze(9, drafts=(draft,)))
    assert [(reply.kind, reply.part) for reply in await world.replies()] == [("note", 1), ("note", 2)]
    await _go_on(world)
    await world.answer("Here.")
    assert [reply.kind for reply in await world.replies()] == ["note", "note", "final"]
    assert {reply.job_id for reply in await world.replies()} == {lost.id}
    said = await world.rows(select(messages.c.event).order_by(messages.c.seq))
    assert [row.event for row in said] == ["message", "note", "message", "delay", "reply"]


async def test_a_waiting_time_that_was_told_is_kept_or_told_anew(world: World) -> None:
    await world.say("Now?")

    async def put_off(seconds: float, words: str) -> None:
        draft = await world.draft(words, kind="note")
        await world.end(await world.claim_one(), Snooze(seconds, "model.unavailable", drafts=(draft,)))
        await world.pass_time(seconds)
        await world.run(lambda c: c.execute(update(event_rows).values(at=event_rows.c.at - seconds)))
        await world.run(queue.stage)

    await put_off(3600, "until ten")
    await put_off(30, "not said: it is about ten")
    await put_off(20, "not said either")
    await put_off(600, "until ten past ten")
    await put_off(50, "not said")
    await put_off(3600, "until eleven")
    assert [reply.part for reply in await world.replies()] == [1, 2, 3]
    told = await world.rows(select(messages.c.seq).where(messages.c.event == "delay"))
    assert len(told) == 3


async def test_a_question_is_asked_once_whoever_else_writes_meanwhile_and_no_answer_is_overlooked(
    world: World,
) -> None:
    async def waits(seen_to: int) -> str:
        draft = await world.draft("Which one?", kind="note")
        wait = Wait("Which one?", "call-1", drafts=(draft,), seen_to=seen_to)
        return (await world.end(await world.claim_one(), wait)).state

    first = await world.say("Do it.")
    more = await world.say("Said while it was thinking about what to ask.")
    assert (first.seq, more.seq) == (1, 2)
    assert await waits(1) == "ready", "it goes on, and knows what was said"
    assert await world.replies() == []
    assert await waits(2) == "waiting"
    stranger = await world.say("Me too!")
    assert stranger.woke
    assert await waits(stranger.seq or 0) == "waiting", "nobody it listens to has answered"
    assert [reply.kind for reply in await world.replies()] == ["note"], "it was asked before"
    assert len(await world.rows(select(questions))) == 1


async def _go_on(world: World) -> None:
    """Let the time come that a job was put off to."""
    await world.pass_time(10)
    await world.run(queue.stage)


async def test_whoever_stops_a_job_is_not_told_that_it_takes_longer(world: World) -> None:
    await world.say("Now?")
    claim = await world.claim_one()
    await world.cancel(claim.id)
    await world.end(claim, Snooze(9, drafts=(await world.draft("Later.", kind="note"),)))
    assert await world.replies() == []


async def test_snoozing_for_ever_costs_no_try(world: World) -> None:
    job = await world.submit(max_attempts=1)
    for _ in range(5):
        await world.end(await world.claim_one(), Snooze(0, "rate_limited"))
    await world.work()
    assert await world.states(job) == ["done"]
    assert [number for number, *_ in await world.tries(job)] == [1] * 6


async def test_the_fence_grows_and_is_never_used_twice(world: World) -> None:
    await world.submit()
    fences = []
    for outcome in (Snooze(0), Retry("flaky", after=0), Snooze(0), Done()):
        claim = await world.claim_one()
        fences.append(claim.fence)
        await world.end(claim, outcome)
    assert fences == [1, 2, 3, 4]


def test_waits_between_tries_grow_within_bounds() -> None:
    longest = [max(ending.backoff(tries) for _ in range(200)) for tries in (1, 4, 40)]
    assert longest == sorted(longest)
    assert longest[-1] <= ending.MAX_BACKOFF


# The fence.


async def lost_claim(world: World) -> Claim:
    """A claim whose job another worker has taken over since."""
    await world.submit()
    claim = await world.claim_one()
    await world.pass_time(31)
    assert await world.sweep() == 1
    await world.claim_one(owner="worker-2")
    return claim


@pytest.mark.parametrize(
    "outcome", [Done(), Retry("x"), Snooze(1), Wait("?"), Cancel("x"), Dead("x")], ids=repr
)
async def test_a_worker_that_lost_its_job_cannot_end_it(world: World, outcome: Outcome) -> None:
    claim = await lost_claim(world)
    before = await world.job(claim.id)
    with pytest.raises(Fenced):
        await world.end(claim, outcome)
    assert await world.job(claim.id) == before


async def test_nor_can_it_write_an_event(world: World) -> None:
    claim = await lost_claim(world)
    with pytest.raises(Fenced):
        await world.run(events.append, job_id=claim.id, owner=claim.owner, fence=claim.fence, kind="error")
    assert "error" not in await world.kinds_of_events(claim.id)


@pytest.mark.parametrize("verb", ["begin", "placed", "sent", "confirmed", "failed"])
async def test_nor_can_it_touch_the_ledger(world: World, verb: str) -> None:
    claim = await lost_claim(world)
    extra: dict[str, dict[str, str | None]] = {
        "placed": {"external_id": "9"},
        "sent": {"confirm_after": None},
        "failed": {"reason": "x"},
    }
    with pytest.raises(Fenced):
        await world.run(getattr(ledger, verb), claim=claim, part=SOME_PART, **extra.get(verb, {}))


SOME_PART = Part(
    1, 1, "final", 1, 1, "kitchen", "hello_test", "", "text", {}, ReplyState.PLANNED, "", 0, "", (), None
)


async def test_the_same_worker_is_fenced_too_when_it_claimed_again(world: World) -> None:
    await world.submit()
    stale = await world.claim_one(owner="worker-1")
    await world.pass_time(31)
    await world.sweep()
    fresh = await world.claim_one(owner="worker-1")
    with pytest.raises(Fenced):
        await world.end(stale)
    await world.end(fresh)


@pytest.mark.parametrize("stale_first", [True, False])
async def test_two_tries_at_one_job_that_end_together_are_told_apart(world: World, stale_first: bool) -> None:
    job = await world.submit()
    stale = await world.claim_one()
    await world.pass_time(31)
    await world.sweep()
    fresh = await world.claim_one()
    endings = [FinishedRun(stale, Retry("interrupted")), FinishedRun(fresh, Done())]
    ended = await world.run(
        ending.finish_runs, vault=world.vault, endings=endings if stale_first else endings[::-1]
    )
    assert [each is None for each in ended] == [stale_first, not stale_first]
    assert await world.states(job) == ["done"]


async def test_events_of_a_run_are_numbered_without_gaps(world: World) -> None:
    job = await world.submit()
    claim = await world.claim_one()
    write = partial(events.append, job_id=job, owner=claim.owner, fence=claim.fence, kind="error")
    assert [(await world.run(write))[1] for _ in range(3)] == [3, 4, 5]
    await world.end(claim)
    rows = await world.database.read(partial(events.of_job, job_id=job))
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 6]


# Workers that went silent.


async def test_a_silent_workers_job_goes_to_another_and_the_try_counts(world: World) -> None:
    job = await world.submit()
    await world.claim_one()
    assert await world.sweep() == 0
    await world.pass_time(31)
    assert await world.sweep() == 1
    claim = await world.claim_one(owner="worker-2")
    assert (claim.id, claim.attempts) == (job, 2)
    assert (await world.tries(job))[0] == (1, "lost", "worker.lost")


async def test_a_job_that_kills_every_worker_dies(world: World) -> None:
    job = await world.submit(max_attempts=2)
    for _ in range(2):
        await world.claim_one()
        await world.pass_time(31)
        await world.sweep()
    assert (await world.job(job)).state == "dead"
    assert (await world.job(job)).reason == "worker.lost"


async def test_a_renewal_in_the_last_moment_saves_the_job(world: World) -> None:
    await world.submit()
    claim = await world.claim_one()
    await world.pass_time(31)
    (seen,) = await world.database.read(maintenance.lost_jobs)
    await world.run(queue.renew, owner=claim.owner, lease=30, held=[claim.id])
    assert not await world.run(maintenance.rescue, vault=world.vault, claim=seen, apology=lambda *_: ())
    await world.end(claim)


# Dead letters.


async def test_redriving_gives_one_more_try_and_keeps_the_history(world: World) -> None:
    job = await world.submit(max_attempts=1)
    await world.end(await world.claim_one(), Retry("flaky"))
    assert await world.redrive(job) == "ready"
    assert (await world.job(job)).max_attempts == 2
    await world.work()
    assert await world.tries(job) == [(1, "dead", "flaky"), (2, "done", "")]
    assert "job.redriven" in await world.kinds_of_events(job)


async def test_a_redriven_job_waits_while_its_lane_is_taken(world: World) -> None:
    job = await world.submit("kitchen")
    await world.end(await world.claim_one(), Dead("hopeless"))
    await world.submit("kitchen")
    assert await world.redrive(job) == "blocked"
    await world.work()
    assert (await world.claim_one()).id == job


async def test_only_what_ended_badly_can_be_redriven(world: World) -> None:
    job = await world.submit()
    with pytest.raises(Conflict, match="is ready"):
        await world.redrive(job)
    await world.work()
    with pytest.raises(Conflict, match="is done"):
        await world.redrive(job)
    with pytest.raises(NotFound, match="no job 999999"):
        await world.redrive(999999)
