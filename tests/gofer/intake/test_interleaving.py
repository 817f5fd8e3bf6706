"""No message falls between a run's last look and its end, however intake and conclude cross each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, select

from gofer.intake.transaction import take_in
from gofer.jobs.control import cancel
from gofer.jobs.finish import finish_run
from gofer.jobs.outcome import Cancel, Dead, Done, Draft, Outcome
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.store.tables import jobs, messages, participants, replies
from support.interleaving import interleave, statements_of
from support.world import World


def intake(world: World, room: str, number: int) -> Callable[[Connection], Any]:
    arrival = world.arrival(f"message {number}", room=room)
    return lambda c: take_in(c, world.vault, arrival)


def end(world: World, claim: Claim, outcome: Outcome) -> Callable[[Connection], Any]:
    return lambda c: finish_run(c, world.vault, claim, outcome)


async def at_work(world: World, room: str) -> Claim:
    """A room in which a run has read its only message."""
    await world.say(room=room)
    return await world.claim_one()


async def nobody_is_forgotten(world: World, room: str) -> None:
    """Whoever is wanted has exactly one job, and nothing is left for the sweep to find."""
    binding = await world.binding(room)
    assert binding
    wanted = await world.rows(select(participants).where(participants.c.wake_seq > participants.c.read_seq))
    for participant in wanted:
        live = (jobs.c.lane == participant.id) & jobs.c.state.in_(
            ("ready", "running", "scheduled", "waiting")
        )
        assert await world.count(jobs, live) == 1, f"{room}: {participant}"
    assert await world.sweep() == 0


async def test_a_message_that_crosses_the_end_of_a_run_has_a_job(world: World) -> None:
    """The run's end is stopped at each of its statements in turn, and the message comes in there."""
    claim = await at_work(world, "counted")
    steps = await statements_of(world.database, end(world, claim, Done(included_to=1)))
    for step in range(steps + 1):
        room = f"room {step}"
        claim = await at_work(world, room)
        await interleave(
            world.database, end(world, claim, Done(included_to=1)), intake(world, room, 2), at=step
        )
        await nobody_is_forgotten(world, room)
        (job,) = await world.claim(limit=5)
        assert job.covers_from == 1


async def test_a_run_that_ends_while_a_message_comes_in_leaves_it_a_job(world: World) -> None:
    """The other way round: intake is stopped at each of its statements, and the run ends there."""
    await at_work(world, "counted")
    steps = await statements_of(world.database, intake(world, "counted", 2))
    for step in range(steps + 1):
        room = f"room {step}"
        claim = await at_work(world, room)
        await interleave(
            world.database, intake(world, room, 2), end(world, claim, Done(included_to=1)), at=step
        )
        await nobody_is_forgotten(world, room)
        (job,) = await world.claim(limit=5)
        assert job.covers_from == 1


async def test_a_message_after_a_stop_is_not_swallowed_by_it(world: World) -> None:
    claim = await at_work(world, "kitchen")
    await world.run(cancel, job_id=claim.id, by="ann")
    await world.say("do this instead")
    await world.end(claim, Cancel("cancelled"))
    (job,) = await world.claim(limit=5)
    assert job.covers_from == 1
    await nobody_is_forgotten(world, "kitchen")


async def test_a_run_that_gives_up_answers_for_what_came_meanwhile(world: World) -> None:
    claim = await at_work(world, "kitchen")
    await world.say("and another thing")
    await world.end(claim, Dead("hopeless"))
    (participant,) = await world.participants()
    assert (participant.read_seq, participant.wake_seq) == (2, 2)


async def test_a_reply_planned_while_its_delivery_ends_is_delivered(world: World) -> None:
    await world.say(room="counted")
    await world.answer("first")
    steps = await statements_of(world.database, end(world, await world.claim_one(pool="service"), Done()))
    for step in range(steps + 1):
        room = f"room {step}"
        await world.say(room=room)
        await world.answer("first")
        delivery = (await world.claim(pool="service", limit=9))[-1]
        await world.run(lambda c: c.execute(replies.update().values(state="sent")))
        await world.say(room=room)
        answering = (await world.claim(limit=9))[-1]
        planning = end(world, answering, Done(drafts=(Draft(await world.binding(room), ("second",)),)))
        await interleave(world.database, end(world, delivery, Done()), planning, at=step)
        live = (jobs.c.lane == delivery.lane) & (jobs.c.state == "ready")
        assert await world.count(jobs, live) == 1
    assert await world.sweep() == 0


async def test_under_random_load_every_message_is_read_once_and_nothing_is_stranded(
    world: World, eventually: Callable[..., Awaitable[Any]]
) -> None:
    read: list[tuple[str, int]] = []

    async def answer(run: Run) -> Outcome:
        claim = run.claim
        found = await world.rows(
            select(messages.c.seq).where(
                messages.c.conversation_id == claim.conversation_id,
                messages.c.seq > claim.covers_from,
                messages.c.addressed,
            )
        )
        await asyncio.sleep(random.random() * 0.01)
        read.extend((str(claim.conversation_id), row.seq) for row in found)
        return Done(included_to=max(row.seq for row in found))

    async def talk(n: int) -> None:
        for _ in range(8):
            await asyncio.sleep(random.random() * 0.02)
            await world.say(room=f"room {n % 3}")

    async def all_read() -> bool:
        behind = participants.c.wake_seq > participants.c.read_seq
        return len(read) >= 48 and await world.count(participants, behind) == 0

    async with world.worker({"answer": answer}), world.worker({"answer": answer}, owner="worker-2"):
        await asyncio.gather(*(talk(n) for n in range(6)))
        await eventually(all_read)
    assert len(read) == len(set(read)) == 48
    assert await world.count(jobs, jobs.c.state != "done") == 0
    assert await world.sweep() == 0
