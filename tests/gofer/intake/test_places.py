"""Places that are known by more than their name, while two messages come in at once; the same on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, select

from gofer.intake.arrival import Taken
from gofer.intake.transaction import take_in
from gofer.store.tables import bindings, events
from support.interleaving import Verb, interleave, statements_of
from support.world import World

# What was there, as name and place for ever (none for one from before they were known); two messages; what is left.
Known = tuple[str, str | None]
CROSSINGS: dict[str, tuple[list[Known], list[Known], list[Known]]] = {
    "a name that another place has now": ([("a#1", "1")], [("a#1", "2")] * 2, [("a#1", "2"), ("a#1 (was 1)", "1")]),
    "a place that has another name now": ([("a#1", "1")], [("b#1", "1")] * 2, [("b#1", "1")]),
    "its old name taken meanwhile": ([("a#1", "1")], [("b#1", "1"), ("a#1", "2")], [("a#1", "2"), ("b#1", "1")]),
    "names exchanged": (
        [("a#1", "1"), ("b#1", "2")], [("b#1", "1"), ("a#1", "2")], [("a#1", "2"), ("b#1", "1")],
    ),
    "one that went by its name": ([("a#1", "")], [("a#1", "1")] * 2, [("a#1", "1")]),
    "one that nobody knew": ([], [("a#1", "1")] * 2, [("a#1", "1")]),
}  # fmt: skip


def intake(world: World, room: str, lasting: str | None) -> Verb:
    arrival = world.arrival(room=room, stable_id=lasting or "")

    def verb(connection: Connection) -> Taken:
        return take_in(connection, world.vault, arrival)

    return verb


@pytest.mark.parametrize("crossing", CROSSINGS)
async def test_two_messages_that_cross_find_each_place_once(world: World, crossing: str) -> None:
    before, (first, second), after = CROSSINGS[crossing]
    await _set(world, "-", before)
    steps = await statements_of(world.database, intake(world, *_at("-", first)))
    for step in (*range(min(steps, 8)), steps):
        known = await _set(world, f"{step}-", before)
        await interleave(
            world.database,
            intake(world, *_at(f"{step}-", first)),
            intake(world, *_at(f"{step}-", second)),
            at=step,
        )
        rows = await world.rows(
            select(bindings).where(bindings.c.ref.startswith(f"{step}-")).order_by(bindings.c.ref)
        )
        assert [(row.ref, row.lasting) for row in rows] == [_said(f"{step}-", one) for one in after], step
        for row in rows:
            assert known.get(row.lasting, row.conversation_id) == row.conversation_id
    moved = await world.rows(select(events.c.data).where(events.c.kind == "conversation.moved"))
    assert all(row.data["from"] != row.data["to"] for row in moved)


async def test_a_message_is_kept_with_its_own_place_though_another_gets_the_name(world: World) -> None:
    """Said in a repository while the first word comes from another that was made under its name."""
    await _set(world, "-", [("a#1", "1")])
    steps = await statements_of(world.database, intake(world, "-a#1", "-1"))
    for step in range(min(steps, 8)):
        at = f"{step}-"
        await _set(world, at, [("a#1", "1")])
        said = [intake(world, f"{at}a#1", f"{at}{place}") for place in "12"]
        old, new = await interleave(world.database, *said, at=step)
        rows = await world.rows(select(bindings).where(bindings.c.ref.startswith(at)))
        kept = {row.lasting: row.conversation_id for row in rows}
        assert kept == {f"{at}1": old.conversation_id, f"{at}2": new.conversation_id}, step


def _at(step: str, one: Known) -> Known:
    return f"{step}{one[0]}", one[1] and f"{step}{one[1]}"


def _said(step: str, one: Known) -> Known:
    return f"{step}{one[0].replace('(was ', f'(was {step}')}", one[1] and f"{step}{one[1]}"


async def _set(world: World, step: str, before: list[Known]) -> dict[str | None, str]:
    """Have these places be known. Returns the conversation of each."""
    for one in before:
        room, lasting = _at(step, one)
        await world.say("hello", room=room, stable_id=lasting or "")
    rows = await world.rows(select(bindings).where(bindings.c.ref.startswith(step)))
    return {row.lasting: row.conversation_id for row in rows if row.lasting}
