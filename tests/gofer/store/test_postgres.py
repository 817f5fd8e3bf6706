"""Postgres' own promises: conflicts are tried again, an outage is said in words and then over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, insert, select, text, update

from gofer.errors import GoferError, StoreUnavailable
from gofer.store.postgres import PostgresDatabase
from gofer.store.tables import workspaces
from support.servers import Server


def touch(*names: str) -> Callable[[Connection], None]:
    def verb(c: Connection) -> None:
        c.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
        for name in names:
            c.execute(
                update(workspaces)
                .where(workspaces.c.id == name)
                .values(created_at=workspaces.c.created_at + 1)
            )
            c.execute(text("SELECT pg_sleep(0.1)"))

    return verb


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def test_a_deadlock_is_tried_again_and_both_succeed(postgres_url: str) -> None:
    store = PostgresDatabase(postgres_url)
    rows = [{"id": name, "name": name, "created_at": 0} for name in ("a", "b")]
    await store.write(lambda c: c.execute(insert(workspaces), rows))
    await asyncio.gather(store.write(touch("a", "b")), store.write(touch("b", "a")))
    found = await store.read(lambda c: c.execute(select(workspaces.c.created_at)).scalars().all())
    await store.close()
    assert list(found) == [2, 2]


async def test_a_serialization_failure_is_tried_again(postgres_url: str) -> None:
    store = PostgresDatabase(postgres_url)
    tries = []

    def clash(c: Connection) -> None:
        tries.append(1)
        if len(tries) < 3:
            c.execute(text("DO $$ BEGIN RAISE EXCEPTION 'clash' USING ERRCODE = '40001'; END $$"))

    await store.write(clash)
    await store.close()
    assert len(tries) == 3


async def test_a_connection_the_driver_has_lost_track_of_is_an_outage_and_not_used_again(
    postgres_url: str,
) -> None:
    """As in the instant between a server's last word and the end of its connection."""
    store = PostgresDatabase(postgres_url, pool_size=1)
    used = []

    def lose_track(c: Connection) -> None:
        used.append(backend(c))
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    with pytest.raises(StoreUnavailable):
        await store.write(lose_track)
    assert await store.read(backend) not in used
    await store.close()


def backend(c: Connection) -> int:
    return int(c.execute(text("SELECT pg_backend_pid()")).scalar_one())


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A PostgreSQL that may be stopped without disturbing other tests."""
    server = Server("postgres")
    yield server
    server.leave()


async def test_an_outage_is_said_in_words_and_then_over(
    own_server: Server, eventually: Callable[..., Awaitable[Any]]
) -> None:
    store = PostgresDatabase(own_server.postgres_url("postgres"))
    await store.start()
    await store.write(lambda c: c.execute(text("CREATE TABLE kept AS SELECT 1 AS one")))
    sleeping = asyncio.ensure_future(store.write(lambda c: c.execute(text("SELECT pg_sleep(30)"))))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(own_server.stop_for_now)
    with pytest.raises(StoreUnavailable):
        await sleeping
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.read(lambda c: c.execute(text("SELECT one FROM kept")).scalar())
    await asyncio.to_thread(own_server.start_again)

    async def is_back() -> bool:
        try:
            return await store.read(lambda c: c.execute(text("SELECT one FROM kept")).scalar()) == 1
        except StoreUnavailable:
            return False

    await eventually(is_back)
    await store.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("postgres@", "nobody@"), "GOFER_DATABASE_URL.*nobody.* does not exist"),
        (("/gofer_", "/missing_"), "GOFER_DATABASE_URL.*missing_.* does not exist"),
        (("host=/", "host=/missing/"), "cannot be reached"),
    ],
    ids=["role", "database", "host"],
)
async def test_a_server_that_refuses_is_a_problem_in_words(
    postgres_url: str, change: tuple[str, str], reason: str
) -> None:
    store = PostgresDatabase(postgres_url.replace(*change))
    try:
        with pytest.raises(GoferError, match=reason):
            await store.start()
    finally:
        await store.close()


async def test_a_server_without_room_for_another_connection_is_waited_for_and_then_unavailable(
    postgres_url: str,
) -> None:
    admin = await asyncpg.connect(postgres_url)
    name = name_of(postgres_url)
    await admin.execute(
        f"CREATE ROLE crowded LOGIN CONNECTION LIMIT 0; GRANT ALL ON DATABASE {name} TO crowded"
    )
    store = PostgresDatabase(postgres_url.replace("postgres@", "crowded@"), patience=0)
    patient = PostgresDatabase(postgres_url.replace("postgres@", "crowded@"))
    try:
        with pytest.raises(StoreUnavailable, match="too many connections"):
            await store.start()
        starting = asyncio.ensure_future(patient.start())
        await asyncio.wait([starting], timeout=0.1)
        assert not starting.done()
        await admin.execute("ALTER ROLE crowded CONNECTION LIMIT 1")
        await starting
    finally:
        await store.close()
        await patient.close()
        await admin.execute(f"REVOKE ALL ON DATABASE {name} FROM crowded; DROP ROLE crowded")
        await admin.close()
