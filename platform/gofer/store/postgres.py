"""Postgres: the same verbs on a pool of asyncpg connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only, greenlet_spawn

from gofer.errors import ConfigError, StoreUnavailable
from gofer.store import json_text
from gofer.store.address import driver_arguments
from gofer.store.database import Dialect

T = TypeVar("T")
Way: TypeAlias = Callable[[Any, Callable[[], Any]], Any]
"""How work is run on a driver's connection: within a transaction, or by itself."""

TRIES = 5
SERIALIZATION_FAILURE, DEADLOCK = "40001", "40P01"
UNAVAILABLE = ("08", "25006", "53", "57P")
"""SQLSTATEs and their classes: connection trouble, read-only after a fail-over, out of resources, shutting down."""


class PostgresDatabase:
    """The store for several machines."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.url = url
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=partial(asyncpg.connect, **driver_arguments(url)),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=10,
            pool_pre_ping=False,
            # BEGIN and COMMIT are ours, since hot statements pass SQLAlchemy by.
            isolation_level="AUTOCOMMIT",
            json_serializer=json_text.write,
            json_deserializer=json_text.read,
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

    async def write(self, verb: Callable[[Connection], T]) -> T:
        return await self._to_its_end(verb, _in_transaction)

    async def write_one(self, verb: Callable[[Connection], T]) -> T:
        return await self._to_its_end(verb, _by_itself)

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
        for attempt in range(TRIES):
            try:
                return await greenlet_spawn(self._transact, verb, way)
            except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if attempt + 1 < TRIES and _worth_repeating(error):
                    await asyncio.sleep(random.SystemRandom().uniform(0, 0.02 * 2**attempt))
                    continue
                raise _translated(error) from error
            except (OSError, PoolTimeout, TimeoutError) as error:
                raise StoreUnavailable(f"Postgres cannot be reached: {error}.") from error
        raise AssertionError("unreachable")

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
            finally:
                if driver.is_closed() or driver.is_in_transaction():
                    connection.invalidate()

    async def read(self, verb: Callable[[Connection], T]) -> T:
        return await self.write(verb)


def _in_transaction(driver: Any, work: Callable[[], T]) -> T:
    """Not asyncpg's own context: on a broken connection its end hides the error, and even a cancel, it ends for."""
    transaction = driver.transaction()
    await_only(transaction.start())
    try:
        result = work()
    except BaseException:
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await_only(transaction.rollback())
        raise
    await_only(transaction.commit())
    return result


def _by_itself(driver: Any, work: Callable[[], T]) -> T:
    """A statement alone is a transaction already."""
    return work()


def _worth_repeating(error: Exception) -> bool:
    """Whether the server itself rolled back and asks for another try."""
    return _state(error) in (SERIALIZATION_FAILURE, DEADLOCK)


def _state(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", "") or "")


def _translated(error: Exception) -> Exception:
    said = getattr(error, "orig", error)
    if isinstance(said.__cause__ or said, asyncpg.ClientConfigurationError):
        return ConfigError(f"GOFER_DATABASE_URL cannot be used: {said}.")
    gone = isinstance(error, OperationalError | InterfaceError | asyncpg.InterfaceError)
    if gone or getattr(error, "connection_invalidated", False) or _state(error).startswith(UNAVAILABLE):
        return StoreUnavailable(f"Postgres did not complete the work: {said}.")
    return error
