"""What both databases promise: whole verbs, durable when they return, one failure not another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from gofer.errors import Conflict
from gofer.store.database import Database
from gofer.store.tables import workspaces


def add(name: str) -> Callable[[Connection], Any]:
    return lambda c: c.execute(insert(workspaces).values(id=name, name=name, created_at=0))


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(workspaces)).scalar_one())


def add_and_fail(c: Connection) -> None:
    c.execute(insert(workspaces).values(id="half", name="half", created_at=0))
    raise Conflict("no")


async def test_what_was_written_is_read_by_the_next_reader(database: Database) -> None:
    for number in range(5):
        await database.write(add(f"w{number}"))
        assert await database.read(count) == number + 1


async def test_a_verb_that_fails_changes_nothing_and_spoils_nobody(database: Database) -> None:
    verbs = [add("a"), add_and_fail, add("b"), lambda c: c.execute(text("nonsense")), add("a"), add("c")]
    results = await asyncio.gather(*(database.write(verb) for verb in verbs), return_exceptions=True)
    assert isinstance(results[1], Conflict)
    assert isinstance(results[3], Exception)
    # Postgres runs them side by side: either of the two that add the same may be first.
    assert sum(isinstance(results[n], Exception) for n in (0, 4)) == 1
    assert await database.read(count) == 3


async def test_a_verb_that_fails_alone_leaves_the_store_usable(database: Database) -> None:
    with pytest.raises(Conflict):
        await database.write(add_and_fail)
    await database.write(add("after"))
    assert await database.read(count) == 1


async def test_writers_that_change_one_row_at_once_all_count(database: Database) -> None:
    await database.write(add("one"))

    def grow(c: Connection) -> None:
        row = c.execute(select(workspaces).where(workspaces.c.id == "one").with_for_update()).one()
        c.execute(workspaces.update().values(created_at=row.created_at + 1))

    await asyncio.gather(*(database.write(grow) for _ in range(50)))
    assert await database.read(lambda c: c.execute(select(workspaces.c.created_at)).scalar()) == 50


async def test_a_caller_that_stops_waiting_does_not_undo_what_others_wrote(database: Database) -> None:
    given_up = asyncio.ensure_future(database.write(add("mine")))
    others = [asyncio.ensure_future(database.write(add(f"o{n}"))) for n in range(5)]
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(*others)
    assert await database.read(count) in (5, 6)


async def test_an_integrity_error_is_the_callers_own(database: Database) -> None:
    await database.write(add("one"))
    with pytest.raises(DBAPIError):
        await database.write(add("one"))


async def test_a_reader_cannot_write_on_sqlite(database: Database) -> None:
    if database.dialect == "sqlite":
        with pytest.raises(Exception, match="readonly"):
            await database.read(add("one"))
    assert await database.read(count) == 0
