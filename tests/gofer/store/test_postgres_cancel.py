"""A cancel in mid-transaction reaches whoever cancelled, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, insert, select, text

from gofer.store import hot
from gofer.store.postgres import PostgresDatabase
from gofer.store.tables import workspaces

SLEEP = select(text("pg_sleep(30)"))


@pytest.mark.parametrize(
    "sleep", [lambda c: c.execute(SLEEP), lambda c: hot.fetch(c, SLEEP)], ids=["core", "hot"]
)
async def test_a_cancelled_write_is_cancelled_and_undone(
    postgres_url: str, sleep: Callable[[Connection], object]
) -> None:
    store = PostgresDatabase(postgres_url)

    def verb(c: Connection) -> None:
        c.execute(insert(workspaces).values(id="half", name="half", created_at=0))
        sleep(c)

    try:
        writing = asyncio.ensure_future(store.write(verb))
        await asyncio.sleep(0.3)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        found = await store.read(
            lambda c: c.execute(select(workspaces.c.id).where(workspaces.c.id == "half")).first()
        )
        assert found is None
    finally:
        await store.close()
