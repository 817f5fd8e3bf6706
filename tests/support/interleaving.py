"""Two transactions stepped through each other, statement by statement, on real databases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, event
from sqlalchemy.util import await_only

from gofer.store import fast_sql
from gofer.store.database import Database

Verb = Callable[[Connection], Any]

LONG_ENOUGH = 0.1
"""Seconds in which the other transaction surely has finished or waits for a lock."""


@contextlib.contextmanager
def before_each_statement(connection: Connection, step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before every statement of one connection, whether SQLAlchemy or the driver runs it."""

    def stepping(run: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(on: Connection, *args: Any) -> Any:
            if on is connection:
                step()
            return run(on, *args)

        return stepped

    def listener(*_: Any) -> None:
        step()

    event.listen(connection, "before_cursor_execute", listener)
    with (
        patch.object(fast_sql, "fetch", stepping(fast_sql.fetch)),
        patch.object(fast_sql, "many", stepping(fast_sql.many)),
    ):
        yield
    event.remove(connection, "before_cursor_execute", listener)


class _Enough(Exception):
    """Ends a transaction without a commit."""


async def statements_of(database: Database, verb: Verb) -> int:
    """How many statements a verb runs. It is rolled back."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    def run(connection: Connection) -> None:
        with before_each_statement(connection, count):
            verb(connection)
        raise _Enough

    with contextlib.suppress(_Enough):
        await database.write(run)
    return seen


async def interleave(database: Database, first: Verb, second: Verb, *, at: int) -> tuple[Any, Any]:
    """Run `first`, stop it before its statement number `at` (or before its commit), run `second` as far as it gets,
    let `first` go on. SQLite has one writer, so there `second` begins when `first` has ended."""
    loop = asyncio.get_running_loop()
    stopped, go_on, go_on_thread = asyncio.Event(), asyncio.Event(), threading.Event()
    steps = 0

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)
        if database.dialect == "postgresql":
            await_only(go_on.wait())
        else:
            go_on_thread.wait()

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == at + 1:
            stop()

    def stepped(connection: Connection) -> Any:
        with before_each_statement(connection, step):
            result = first(connection)
        if steps <= at:
            stop()
        return result

    one = asyncio.ensure_future(database.write(stepped))
    await asyncio.wait([one, asyncio.ensure_future(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
    two = asyncio.ensure_future(database.write(second))
    await asyncio.wait([two], timeout=LONG_ENOUGH if database.dialect == "postgresql" else 0)
    go_on.set()
    go_on_thread.set()
    return await one, await two
