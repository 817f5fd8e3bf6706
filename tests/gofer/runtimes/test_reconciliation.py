"""Reconciliation as a property: whatever state participants are in, the same state makes the same Triggers, a second
tick makes none, and a closed conversation has none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select, update

from gofer.jobs.kinds import ANSWER
from gofer.jobs.outcome import Done, Snooze
from gofer.jobs.queue import submit
from gofer.purge import purge_conversation
from gofer.store.db_time import now
from gofer.store.tables import attempts, bindings, conversations, hops, jobs, participants
from support.world import World

from .test_triggers import Pane

ROOMS, LAST = 4, 3
CURSORS = st.integers(0, LAST)
FAR = 10_000.0


@dataclass(frozen=True)
class Standing:
    """How one participant stands: its cursors, its conversation, and whether a job of it is under way."""

    read: int
    wake: int
    ack: int | None
    closed: bool
    live: str

    @property
    def wanted(self) -> bool:
        return self.wake > self.read and not self.live and not self.closed


STANDINGS = st.builds(
    Standing, CURSORS, CURSORS, st.none() | CURSORS, st.booleans(),
    st.sampled_from(["", "", "", "scheduled", "waiting", "running"]),
)  # fmt: skip


def arrange(connection: Connection, rows: list[Any], states: list[Standing]) -> None:
    """Put the participants into these states, and nothing else."""
    for table in (hops, attempts, jobs):
        connection.execute(delete(table))
    for row, state in zip(rows, states, strict=True):
        cursors = {"read_seq": state.read, "wake_seq": state.wake, "ack_seq": state.ack}
        connection.execute(update(participants).where(participants.c.id == row.id).values(**cursors))
        here = conversations.c.id == row.conversation_id
        closed_at = now() if state.closed else None
        connection.execute(update(conversations).where(here).values(closed_at=closed_at))
        if state.live:
            keep_busy(connection, row, state)


def keep_busy(connection: Connection, row: Any, state: Standing) -> None:
    """Give a participant a job that is under way and that nobody else can claim."""
    where = {"conversation_id": row.conversation_id, "participant_id": row.id, "agent_id": row.agent_id}
    made = submit(
        connection, workspace_id=row.workspace_id, kind=ANSWER, lane=row.id, covers_from=state.read, **where
    )
    later = {"run_at": now() + FAR, "lease_until": now() + FAR if state.live == "running" else None}
    connection.execute(update(jobs).where(jobs.c.id == made).values(state=state.live, **later))


async def tick(world: World) -> dict[str, str]:
    """One tick; returns the participants that got a job by it, with their conversations."""
    before = {row.id for row in await world.rows(select(jobs.c.id))}
    count = await world.sweep()
    found = await world.rows(select(jobs.c.id, jobs.c.lane, jobs.c.conversation_id))
    made = [(row.lane, row.conversation_id) for row in found if row.id not in before]
    assert len(made) == len(dict(made)) == count, "one for each participant"
    return dict(made)


@pytest.fixture
async def pane(world: World, tmp_path: Path) -> Pane:
    """Rooms in which the agent was asked something, and one that was purged since."""
    pane = await Pane(world, tmp_path).furnish()
    for room in ("kitchen", *(f"room-{number}" for number in range(ROOMS))):
        for number in range(LAST):
            await pane.say(f"message {number}", room=room)
    gone = next(row for row in await rooms(world) if row.ref == "room-0")
    await world.run(purge_conversation, vault=world.vault, conversation_id=gone.conversation_id, by="ann")
    return pane


async def rooms(world: World) -> list[Any]:
    """The participants of the conversations that were not purged."""
    query = (
        select(participants, conversations.c.workspace_id, bindings.c.ref)
        .join(conversations, conversations.c.id == participants.c.conversation_id)
        .join(bindings, bindings.c.conversation_id == conversations.c.id)
        .order_by(bindings.c.ref)
    )
    return await world.rows(query)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states=st.lists(STANDINGS, min_size=ROOMS, max_size=ROOMS))
async def test_the_same_state_makes_the_same_triggers_and_a_second_tick_none(
    pane: Pane, states: list[Standing]
) -> None:
    world = pane.world
    rows = await rooms(world)
    wanted = {row.id for row, state in zip(rows, states, strict=True) if state.wanted}
    for _ in range(2):
        await world.run(arrange, rows=rows, states=states)
        assert set(await tick(world)) == wanted
        assert await tick(world) == {}

    outcomes = {}
    for claim in await world.claim(ROOMS):
        outcome = await pane.look(claim)
        outcomes[claim.participant_id] = outcome
        # What it says of a refusal is not sent: the next example would find it without a job.
        await world.end(claim, replace(outcome, drafts=()) if isinstance(outcome, Done) else outcome)
    assert set(outcomes) == wanted
    told = {row.job_id for row in await world.rows(select(hops.c.job_id))}
    for row, state in zip(rows, states, strict=True):
        if not state.wanted:
            continue
        outcome = outcomes[row.id]
        if state.ack == LAST:
            assert outcome == Done(included_to=LAST, reason="read")
        else:
            assert isinstance(outcome, Snooze)
    woken = [s for s in states if s.wanted and s.ack != LAST]
    assert len(told) == len(woken), "nobody is woken for what it has read"
    assert await tick(world) == {}, "and none of it is made again"
