"""The event log: followers see each event once, in order, also those that commit late."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sqlalchemy import delete, select

from gofer.store import events
from gofer.store.events import KINDS, Cursor
from gofer.store.open import FIRST_WORKSPACE
from gofer.store.tables import events as log
from interleaving import interleave
from world import World


async def note(world: World, text: str) -> None:
    await world.run(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": text})


async def follow(world: World, cursor: Cursor, limit: int = 500) -> tuple[list[str], Cursor]:
    rows, cursor = await world.database.read(partial(events.after, cursor=cursor, limit=limit))
    return [row["data"].get("text", "") for row in rows if row["kind"] == "error"], cursor


async def test_a_follower_goes_on_from_its_last_event_id(world: World) -> None:
    await note(world, "one")
    seen, cursor = await follow(world, Cursor())
    assert seen == ["one"]
    await note(world, "two")
    assert (await follow(world, Cursor.parse(str(cursor))))[0] == ["two"]


async def test_a_long_log_is_read_in_pages(world: World) -> None:
    for number in range(7):
        await note(world, str(number))
    cursor, seen = Cursor(), []
    while (page := await follow(world, cursor, limit=3))[1] != cursor:
        cursor = page[1]
        seen += page[0]
    assert seen == [str(number) for number in range(7)]


@pytest.mark.parametrize("junk", ["", "x", "1", "1.x", "a.b", "1.2.3", "9" * 400 + ".1", "-1.1"])
def test_a_last_event_id_that_is_none_is_refused(junk: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        Cursor.parse(junk)


async def test_what_commits_late_is_read_late_and_never_skipped(world: World) -> None:
    """One transaction takes its number first and commits last, while a follower looks."""
    early = partial(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": "early"})
    late = partial(events.record, kind="error", workspace_id=FIRST_WORKSPACE, data={"text": "late"})
    looked: list[str] = []
    cursor = Cursor()

    async def look() -> None:
        nonlocal cursor
        seen, cursor = await follow(world, cursor)
        looked.extend(seen)

    async def watch() -> None:
        for _ in range(5):
            await look()
            await asyncio.sleep(0.03)

    await asyncio.gather(interleave(world.database, early, late, at=1), watch())
    await look()
    assert sorted(looked) == ["early", "late"]


async def test_many_writers_and_one_follower_lose_and_double_nothing(world: World) -> None:
    cursor, seen, done = Cursor(), [], asyncio.Event()

    async def watch() -> None:
        nonlocal cursor
        while True:
            last = done.is_set()
            found, cursor = await follow(world, cursor, limit=7)
            seen.extend(found)
            if last and not found:
                return
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(note(world, str(number)) for number in range(60)))
    done.set()
    await watching
    assert sorted(seen, key=int) == [str(number) for number in range(60)]


async def test_a_pruned_last_event_does_not_give_its_place_to_the_next(world: World) -> None:
    await note(world, "one")
    _, cursor = await follow(world, Cursor())
    await world.run(lambda c: c.execute(delete(log)))
    await note(world, "two")
    assert (await follow(world, cursor))[0] == ["two"]


async def test_every_event_of_a_whole_conversation_is_of_a_known_kind(world: World) -> None:
    await world.say()
    await world.answer()
    await world.work(pool="service")
    kinds = {row.kind for row in await world.rows(select(log.c.kind))}
    assert {"delivery.accepted", "job.created", "attempt.finished", "reply.planned"} <= kinds <= set(KINDS)
