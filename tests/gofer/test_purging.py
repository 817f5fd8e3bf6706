"""A purge is real: the words are gone from every table, and whoever still works on them is turned away."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import Connection, LargeBinary, insert, select
from sqlmodel import SQLModel

from gofer.errors import Fenced, NotFound
from gofer.jobs.outcome import Done
from gofer.purge import purge_conversation
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.encryption import conversation_key
from gofer.store.tables import JobState, conversations, goals, messages, tasks
from support.world import World


async def purge(world: World, conversation_id: str) -> None:
    await world.run(
        partial(purge_conversation, vault=world.vault, conversation_id=conversation_id, by="test")
    )


async def test_nothing_sealed_is_left(world: World) -> None:
    taken = await world.say("a word to forget")
    await world.answer("an answer to forget")
    kept = await world.say("a word to keep", room="office")
    assert taken.conversation_id is not None
    assert kept.conversation_id is not None
    await purge(world, taken.conversation_id)
    for table in SQLModel.metadata.sorted_tables:
        sealed = [column for column in table.columns if isinstance(column.type, LargeBinary)]
        if "conversation_id" in table.c and sealed:
            rows = await world.rows(select(*sealed).where(table.c.conversation_id == taken.conversation_id))
            assert all(value is None for row in rows for value in row), table.name
    with pytest.raises(NotFound):
        await world.run(lambda c: conversation_key(c, world.vault, str(taken.conversation_id)))
    await world.run(lambda c: conversation_key(c, world.vault, str(kept.conversation_id)))


async def test_a_run_that_does_not_know_yet_is_turned_away(world: World) -> None:
    taken = await world.say("a word to forget")
    assert taken.conversation_id is not None
    claim = await world.claim_one()
    draft = await world.draft("too late")
    await purge(world, taken.conversation_id)
    with pytest.raises(Fenced):
        await world.end(claim, Done(drafts=(draft,), included_to=1))
    assert await world.state(claim.id) == JobState.CANCELLED
    await world.pass_time(3600)
    assert await world.sweep() == 0


async def test_the_next_message_there_begins_anew(world: World) -> None:
    first = await world.say("a word to forget")
    assert first.conversation_id is not None
    await purge(world, first.conversation_id)
    await purge(world, first.conversation_id)
    second = await world.say("good morning")
    assert second.result == "accepted"
    assert second.conversation_id not in (None, first.conversation_id)
    assert await world.answer("good morning to you") is not None
    (row,) = await world.rows(select(conversations).where(conversations.c.id == first.conversation_id))
    assert (row.title, row.data_key) == ("", None)
    assert await world.count(messages, messages.c.author != "", messages.c.sealed.is_(None)) == 0


async def test_goals_and_tasks_end_and_say_nothing_any_more(world: World) -> None:
    taken = await world.say("a goal to forget")
    conversation = {"workspace_id": FIRST_WORKSPACE, "conversation_id": taken.conversation_id}
    words = {**conversation, "agent_id": "a", "sealed": b"x", "reason": "", "created_at": 1.0}
    goal = {
        "participant_id": "p", "asked_by": "ann", "trust": "owner", "narrowed": False, "spent": 0, "replans": 0,
        "needs_approval": False, "event_seq": 0, "changed_at": 1.0,
    }  # fmt: skip
    task = {"goal_id": "goal_1", "call_id": "", "kind": "research", "needs": [], "tries": 0, "cost": 0}

    def make(c: Connection) -> None:
        row_macs.insert(c, goals, {"id": "goal_1", "state": "active", **words, **goal})
        for number, state in ((1, "done"), (2, "queued")):
            finished = {"finished_at": 2.0, "result": b"y"} if state == "done" else {}
            c.execute(
                insert(tasks).values(
                    id=f"task_{number}", number=number, state=state, **words, **task, **finished
                )
            )

    await world.run(make)
    await purge(world, str(taken.conversation_id))
    (ended,) = await world.rows(select(goals))
    assert (ended.state, ended.reason, ended.sealed) == ("cancelled", "purged", None)
    rows = await world.rows(select(tasks).order_by(tasks.c.number))
    assert [(row.state, row.sealed, row.result) for row in rows] == [
        ("done", None, None),
        ("dropped", None, None),
    ]


async def test_an_unknown_one_is_said_to_be_unknown(world: World) -> None:
    with pytest.raises(NotFound, match="gofer conversations list"):
        await purge(world, "conv_nobody")
