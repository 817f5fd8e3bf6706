"""The event log: followers see each event once, in order, also those that commit late."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sqlalchemy import delete, select

from gofer.store import events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.events import KINDS, Cursor
from gofer.store.tables import events as log
from support.interleaving import interleave
from support.patience import patiently
from support.world import World


async def note(world: World, text: str) -> None:
    await world.run(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": text})


async def look(world: World, cursor: Cursor, limit: int = 500) -> tuple[list[str], Cursor]:
    rows, cursor = await world.database.read(partial(events.after, cursor=cursor, limit=limit))
    return [row["data"].get("text", "") for row in rows if row["kind"] == "error"], cursor


async def follow(world: World, cursor: Cursor, count: int, limit: int = 500) -> tuple[list[str], Cursor]:
    """Look until so many were seen: on Postgres any open transaction, also another test's, holds followers back."""
    seen: list[str] = []
    async with patiently(20):
        while len(seen) < count:
            found, cursor = await look(world, cursor, limit)
            seen += found
            await asyncio.sleep(0.01)
    return seen, cursor


async def test_a_follower_goes_on_from_its_last_event_id(world: World) -> None:
    await note(world, "one")
    seen, cursor = await follow(world, Cursor(), 1)
    assert seen == ["one"]
    await note(world, "two")
    assert (await follow(world, Cursor.parse(str(cursor)), 1))[0] == ["two"]


async def test_a_long_log_is_read_in_pages(world: World) -> None:
    for number in range(7):
        await note(world, str(number))
    assert (await follow(world, Cursor(), 7, limit=3))[0] == [str(number) for number in range(7)]


@pytest.mark.parametrize("junk", ["", "x", "1", "1.x", "a.b", "1.2.3", "9" * 400 + ".1", "-1.1"])
def test_a_last_event_id_that_is_none_is_refused(junk: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        Cursor.parse(junk)


async def test_what_commits_late_is_read_late_and_never_skipped(world: World) -> None:
    """One transaction takes its number first and commits last, while a follower looks."""
    early = partial(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": "early"})
    late = partial(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": "late"})
    watching = asyncio.ensure_future(follow(world, Cursor(), 2))
    await interleave(world.database, early, late, at=1)
    assert sorted((await watching)[0]) == ["early", "late"]


async def test_many_writers_and_one_follower_lose_and_double_nothing(world: World) -> None:
    watching = asyncio.ensure_future(follow(world, Cursor(), 60, limit=7))
    await asyncio.gather(*(note(world, str(number)) for number in range(60)))
    seen, cursor = await watching
    assert sorted(seen, key=int) == [str(number) for number in range(60)]
    assert (await look(world, cursor))[0] == []


async def test_a_pruned_last_event_does_not_give_its_place_to_the_next(world: World) -> None:
    await note(world, "one")
    _, cursor = await follow(world, Cursor(), 1)
    await world.run(lambda c: c.execute(delete(log)))
    await note(world, "two")
    assert (await follow(world, cursor, 1))[0] == ["two"]


async def test_every_event_of_a_whole_conversation_is_of_a_known_kind(world: World) -> None:
    await world.say()
    await world.answer()
    await world.work(pool="service")
    kinds = {row.kind for row in await world.rows(select(log.c.kind))}
    assert {"delivery.accepted", "job.created", "attempt.finished", "reply.planned"} <= kinds <= set(KINDS)
