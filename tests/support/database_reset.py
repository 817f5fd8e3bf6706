"""One PostgreSQL database for all tests of a process: emptied before each, or furnished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from sqlmodel import SQLModel

_ALONE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()"
)
_FROM_ONE = (
    "SELECT setval(format('%I', sequencename)::regclass, start_value, false) FROM pg_sequences "
    "WHERE last_value IS NOT NULL;"
)
_KEEP_NUMBERS = (
    "CREATE TABLE furniture.numbers AS SELECT sequencename, last_value FROM pg_sequences "
    "WHERE last_value IS NOT NULL;"
)
_FROM_THERE = "SELECT setval(format('%I', sequencename)::regclass, last_value) FROM furniture.numbers;"
TABLES = [table.name for table in SQLModel.metadata.sorted_tables]


class Broom:
    """Its connection is kept: to connect, and to have PostgreSQL look up every table anew, took four times as long as
    the sweeping."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None
        self._furniture: list[str] = []
        """The tables that have rows in a furnished database; copies of them are kept in a schema of their own."""

    async def sweep(self) -> None:
        """No rows, no numbers given out, nobody else connected."""
        await self._surely("".join(f'DELETE FROM "{name}";' for name in reversed(TABLES)) + _FROM_ONE)

    async def furnish(self, make: Callable[[], Awaitable[None]]) -> None:
        """The rows that `make` writes, and no others; it is called once."""
        await self.sweep()
        if not self._furniture:
            await make()
            await self._keep()
            return
        rows = "".join(f'INSERT INTO "{name}" SELECT * FROM furniture."{name}";' for name in self._furniture)
        await self._surely(rows + _FROM_THERE)

    async def _keep(self) -> None:
        await self._surely("CREATE SCHEMA furniture;" + _KEEP_NUMBERS)
        for name in TABLES:
            if await self._connection.fetchval(f'SELECT EXISTS (SELECT FROM "{name}")'):
                self._furniture.append(name)
                await self._surely(f'CREATE TABLE furniture."{name}" AS TABLE "{name}"')

    async def _surely(self, statements: str) -> None:
        try:
            await self._execute(statements)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self._connection = None  # a test has cut every connection, this one too
            await self._execute(statements)

    async def _execute(self, statements: str) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(_ALONE)
        await self._connection.execute(statements)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
