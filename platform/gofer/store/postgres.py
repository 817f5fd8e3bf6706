"""Postgres: the same verbs on a pool of asyncpg connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Concatenate, TypeAlias

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only, greenlet_spawn
from sqlmodel import SQLModel

from gofer.database_url import driver_arguments
from gofer.errors import ConfigError, StoreUnavailable
from gofer.store import json_text, tables  # noqa: F401 - fills the metadata
from gofer.store.database import Dialect, P, T
from gofer.store.row_macs import Signing

Way: TypeAlias = Callable[[Any, Callable[[], Any]], Any]
"""How work is run on a driver's connection: within a transaction, or by itself."""

TRIES = 5
PATIENCE = 10.0
"""Seconds to wait for a connection, of the pool or of the server."""
SERIALIZATION_FAILURE, DEADLOCK, TOO_MANY_CONNECTIONS = "40001", "40P01", "53300"
UNAVAILABLE = ("08", "25006", "53", "57P")
"""SQLSTATEs and their classes: connection trouble, read-only after a fail-over, out of resources, shutting down."""

DRIVERS_OWN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg raises; the last when it loses track of a connection, as in the instant before it hears of its end."""


for _index in chain.from_iterable(table.indexes for table in SQLModel.metadata.tables.values()):
    if (_where := _index.dialect_options["sqlite"]["where"]) is not None:
        _index.dialect_options["postgresql"]["where"] = _where


class PostgresDatabase:
    """The store for several machines."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: str, *, pool_size: int = 10, patience: float = PATIENCE) -> None:
        self.url = url
        self.signing = Signing()
        self._patience = patience
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=partial(asyncpg.connect, **driver_arguments(url)),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=patience,
            pool_pre_ping=False,
            # BEGIN and COMMIT are ours, since hot statements pass SQLAlchemy by.
            isolation_level="AUTOCOMMIT",
            json_serializer=json_text.write,
            json_deserializer=json_text.read,
            execution_options={"signing": self.signing},
        )

    async def start(self) -> None:
        try:
            await self.read(lambda connection: connection.execute(text("SELECT 1")).scalar())
        except (DBAPIError, asyncpg.PostgresError) as error:
            raise ConfigError(
                f"Postgres refuses GOFER_DATABASE_URL: {getattr(error, 'orig', error)}."
            ) from error

    async def close(self) -> None:
        await self._engine.dispose()

    async def write(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._to_its_end(lambda connection: verb(connection, *args, **kwargs), _in_transaction)

    async def write_one(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._to_its_end(lambda connection: verb(connection, *args, **kwargs), _by_itself)

    async def _to_its_end(self, verb: Callable[[Connection], T], way: Way) -> T:
        # Like SQLite's writer: a caller that stops waiting does not tear a transaction, whose own clean-up could
        # otherwise fail and hide that the caller was cancelled.
        working = asyncio.ensure_future(self._write(verb, way))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # Nobody waits for it any more, and nobody need be told so.
            raise

    async def _write(self, verb: Callable[[Connection], T], way: Way) -> T:
        repeats, deadline = 0, time.monotonic() + self._patience
        while True:
            try:
                return await greenlet_spawn(self._transact, verb, way)
            except (DBAPIError, *DRIVERS_OWN) as error:
                if (pause := _pause(error, repeats, deadline)) is None:
                    raise _translated(error) from error
            except (OSError, PoolTimeout, TimeoutError) as error:
                raise StoreUnavailable(f"Postgres cannot be reached: {error}.") from error
            repeats += 1
            await asyncio.sleep(pause)

    def _transact(self, verb: Callable[[Connection], T], way: Way) -> T:
        """In a greenlet, where `await_only` waits: SQLAlchemy's own async connection would enter one at every step."""
        with self._engine.sync_engine.connect() as connection:
            pooled: Any = connection.connection
            if pooled.driver_connection.is_closed():
                connection.invalidate()
                pooled = connection.connection
            driver = pooled.driver_connection
            try:
                result: T = way(driver, lambda: verb(connection))
                return result
            except asyncpg.InternalClientError:
                connection.invalidate()
                raise
            finally:
                if driver.is_closed() or driver.is_in_transaction():
                    connection.invalidate()

    async def read(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.write(verb, *args, **kwargs)


def _in_transaction(driver: Any, work: Callable[[], T]) -> T:
    """Not asyncpg's own context: on a broken connection its end hides the error, and even a cancel, it ends for."""
    transaction = driver.transaction()
    await_only(transaction.start())
    try:
        result = work()
    except BaseException:
        with contextlib.suppress(*DRIVERS_OWN, OSError):
            await_only(transaction.rollback())
        raise
    await_only(transaction.commit())
    return result


def _by_itself(driver: Any, work: Callable[[], T]) -> T:
    """A statement alone is a transaction already."""
    return work()


def _pause(error: Exception, repeats: int, deadline: float) -> float | None:
    """Seconds until it is tried again, where the server itself asks for that or has no connection to spare; both
    times nothing was done. A connection of ours may be free by then."""
    dice = random.SystemRandom()
    if _state(error) in (SERIALIZATION_FAILURE, DEADLOCK) and repeats + 1 < TRIES:
        return dice.uniform(0, 0.02 * 2**repeats)
    if _state(error) == TOO_MANY_CONNECTIONS and time.monotonic() < deadline:
        return dice.uniform(0.02, 0.2)
    return None


def _state(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", "") or "")


def _translated(error: Exception) -> Exception:
    said = getattr(error, "orig", error)
    if isinstance(said.__cause__ or said, asyncpg.ClientConfigurationError):
        return ConfigError(f"GOFER_DATABASE_URL cannot be used: {said}.")
    gone = isinstance(
        error, OperationalError | InterfaceError | asyncpg.InterfaceError | asyncpg.InternalClientError
    )
    if gone or getattr(error, "connection_invalidated", False) or _state(error).startswith(UNAVAILABLE):
        return StoreUnavailable(f"Postgres did not complete the work: {said}.")
    return error
