"""A schedule speaks to an agent: once for each due time, with its owner's trust, on its own smaller budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, true, update

from gofer.agent.limits import Short
from gofer.errors import NotFound
from gofer.intake.admit import read_one
from gofer.intake.scheduled_messages import (
    ScheduledMessage,
    ScheduledSender,
    add_scheduled_message,
    show_schedule,
)
from gofer.jobs.cron import Missed, tick
from gofer.jobs.kinds import SAY
from gofer.jobs.notifications import LocalSignals
from gofer.jobs.outcome import Dead, Done, Wait
from gofer.jobs.worker import Run
from gofer.purge import purge_conversation
from gofer.runs.spend import StoreLedger, ran_out_before
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.events import record
from gofer.store.tables import agents, deliveries, events, jobs, members, messages, schedules
from gofer.vault.redaction import Redactor, Secret
from gofer.web.auth.members import add_member
from support.world import World

Eventually = Callable[..., Awaitable[Any]]
WORDS = "Is the garden watered? The gate's code is open-sesame-42."


async def kitchen(world: World) -> str:
    """A conversation in which somebody has spoken before; returns its id."""
    await world.say("hello", stable_id="the kitchen of house 7")
    return str((await world.work()).conversation_id)


async def schedule(
    world: World, conversation_id: str, *, missed: Missed = "once", agent: str = "gofer"
) -> str:
    """Ada has something said at noon and midnight; returns the schedule's id."""

    def add(connection: Connection) -> str:
        by = add_member(connection, name="ada", role="owner")
        saying = ScheduledMessage(agent, conversation_id, by, WORDS)
        return add_scheduled_message(
            connection, world.vault, saying, workspace_id=FIRST_WORKSPACE, name="garden", cron="0 0,12 * * *",
            missed=missed,
        )  # fmt: skip

    id_: str = await world.run(add)
    return id_


def sayer(world: World) -> ScheduledSender:
    redactor = Redactor({"gate": Secret("open-sesame-42")})
    return ScheduledSender(
        database=world.database, vault=world.vault, redactor=redactor, signals=LocalSignals()
    )


async def said(world: World) -> list[Any]:
    return await world.rows(select(messages).where(messages.c.event == "schedule").order_by(messages.c.seq))


async def due(world: World, times: int = 1) -> None:
    """Let it have come due so many times."""
    await world.pass_time(times * 12 * 3600)
    await world.run(tick)


async def test_what_is_due_is_said_once_and_wakes_the_agent_though_the_worker_dies(world: World) -> None:
    place = await kitchen(world)
    await schedule(world, place)
    await due(world)
    await world.run(tick)
    first = await _claimed(world)
    assert await sayer(world).handle(Run(first)) == Done()
    await world.pass_time(60)  # killed before it could say that it has spoken
    await world.sweep()
    again = await _claimed(world)
    assert again.id == first.id
    assert await sayer(world).handle(Run(again)) == Done()
    await world.end(again)
    (message,) = await said(world)
    assert (message.trust, message.addressed, message.conversation_id) == ("owner", True, place)
    assert message.admitted_at is not None
    (delivery,) = await world.rows(select(deliveries).where(deliveries.c.source == "schedule"))
    assert delivery.message_seq == message.seq
    (waiting,) = await world.rows(select(jobs).where(jobs.c.kind == "answer", jobs.c.state == "ready"))
    assert waiting.covers_from < message.seq
    read = await world.database.read(lambda c: read_one(c, world.vault, place, message.seq))
    assert read is not None
    assert read.message.text.startswith("Is the garden watered?")
    assert "open-sesame" not in read.message.text, "a secret stays one"
    assert read.message.author.name == "ada (schedule garden)"
    assert read.message.stable_id == "the kitchen of house 7", "whatever else is called so by then"


async def _claimed(world: World) -> Any:
    """The job in which the schedule speaks; others of its pool are left alone."""
    found = await world.claim(9, pool="service")
    return next(claim for claim in found if claim.kind == SAY)


@pytest.mark.parametrize(("missed", "times"), [("all", 3), ("once", 1)])
async def test_missed_times_are_made_up_for_in_order_by_a_worker(
    world: World, eventually: Eventually, missed: Missed, times: int
) -> None:
    place = await kitchen(world)
    await schedule(world, place, missed=missed)
    await world.pass_time(3 * 12 * 3600)
    handlers = {SAY: sayer(world).handle, "answer": _answered}
    async with world.worker(handlers, slots=2):
        await eventually(lambda: _spoke(world, times))
    found = await world.rows(
        select(deliveries.c.external_id)
        .where(deliveries.c.source == "schedule")
        .order_by(deliveries.c.message_seq)
    )
    moments = [float(row.external_id.rpartition(":")[2]) for row in found]
    assert moments == sorted(set(moments))
    assert len(moments) == times


async def _answered(run: Run) -> Done:
    return Done()


async def _spoke(world: World, times: int) -> bool:
    """Whether it has spoken so often and the agent has dealt with the last of it."""
    done = await world.count(jobs, jobs.c.kind == SAY, jobs.c.state == "done")
    words = await said(world)
    (listener,) = await world.participants()
    return done == len(words) == times and listener.read_seq == words[-1].seq


async def test_nothing_is_said_for_whom_that_is_no_longer_right(world: World) -> None:
    await schedule(world, await kitchen(world))
    await due(world)
    claim = await _claimed(world)

    async def outcome(change: Any = None, back: Any = None, **payload: str) -> Any:
        changed = claim._replace(payload={**claim.payload, **payload})
        if change is not None:
            await world.run(change)
        ended = await sayer(world).handle(Run(changed))
        if back is not None:
            await world.run(back)
        return ended

    demoted, promoted = (
        partial(row_macs.update, table=members, where=true(), values={"role": role})
        for role in ("operator", "owner")
    )
    gone, there = (
        partial(row_macs.update, table=agents, where=true(), values={"name": name})
        for name in ("gone", "gofer")
    )
    assert await outcome(demoted, promoted) == Dead("schedule.not_owner")
    assert await outcome(gone, there) == Dead("schedule.gone")
    assert await outcome(by="somebody else") == Dead("schedule.unreadable"), (
        "the words are bound to their owner"
    )
    assert await outcome(sealed="nonsense") == Dead("schedule.unreadable")
    assert await outcome(lambda c: c.execute(delete(members))) == Dead("schedule.not_owner")
    assert await said(world) == []


async def test_a_purged_conversation_takes_its_schedules_along(world: World) -> None:
    place = await kitchen(world)
    await schedule(world, place)
    (row,) = await world.rows(select(schedules))
    assert "garden watered" not in str(row.payload), "words are sealed"
    await due(world)
    claim = await _claimed(world)
    await world.run(lambda c: purge_conversation(c, world.vault, conversation_id=place, by="test"))
    assert await world.count(schedules) == 0
    assert await sayer(world).handle(Run(claim)) == Dead("schedule.gone")
    shown = await world.database.read(lambda c: show_schedule(c, world.vault, dict(row._mapping)))
    assert shown["say"] == ""


async def test_an_agent_or_a_conversation_that_is_not_there_is_refused(world: World) -> None:
    place = await kitchen(world)
    with pytest.raises(NotFound, match="gofer conversations list"):
        await schedule(world, "conv_nowhere")
    with pytest.raises(NotFound, match="gofer agents list"):
        await schedule(world, place, agent="nobody")


async def test_a_schedule_does_not_end_the_wait_for_somebodys_answer(world: World) -> None:
    place = await kitchen(world)
    await world.say("Which tree?")
    asking = await world.claim_one()
    await world.end(asking, Wait("This one?"))
    await schedule(world, place)
    await due(world)
    claim = await _claimed(world)
    await world.end(claim, await sayer(world).handle(Run(claim)))
    assert len(await said(world)) == 1
    assert await world.state(asking.id) == "waiting"
    await world.say("That one.")
    assert await world.state(asking.id) == "ready"


async def test_work_nobody_waits_for_leaves_the_rest_of_the_day_to_people(world: World) -> None:
    ledgers = []
    for room in ("one", "two"):
        await world.say(room=room)
        claim = await world.claim_one()
        ledgers.append(StoreLedger(database=world.database, claim=claim, timezone="UTC"))
    day: Any = {"day": 100}
    caps: Any = {**day, "background": 30}
    assert await ledgers[0].reserve("turn:1", 30, caps, background=True) is None
    await ledgers[0].settle("turn:1", 25)
    assert await ledgers[1].reserve("turn:1", 10, caps, background=True) == Short("background", 25)
    assert await ledgers[1].reserve("turn:1", 70, day) is None, "what people ask for has the whole day"
    assert await ledgers[0].reserve("turn:2", 5, caps, background=True) is None


async def test_that_a_budget_is_used_up_is_news_once_until_it_changes(world: World) -> None:
    async def ends(code: str) -> bool:
        """Whether a run that ends for this reason was preceded by one for which that was said."""
        await world.say()
        claim = await world.claim_one()
        said = await world.database.read(partial(ran_out_before, claim=claim, code=code, timezone="UTC"))
        if code:
            facts = {"conversation_id": claim.conversation_id, "job_id": claim.id, "data": {"code": code}}
            await world.run(record, kind="run.stopped", workspace_id=claim.workspace_id, **facts)
        await world.end(claim, Done(reason=code))
        return bool(said)

    assert [await ends("budget.conversation") for _ in range(3)] == [False, True, True]
    assert [await ends("budget.day") for _ in range(2)] == [False, True]
    await world.run(lambda c: c.execute(update(events).values(at=events.c.at - 86_400)))
    assert not await ends("budget.day"), "tomorrow's is another"
    assert await ends("budget.conversation"), "this one is the same"
    await ends("")
    assert not await ends("budget.conversation"), "there was money in between"
