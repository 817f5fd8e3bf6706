"""One PostgreSQL database for all tests of a process: emptied before each."""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlmodel import SQLModel

_ALONE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()"
)
_FROM_ONE = (
    "SELECT setval(format('%I', sequencename)::regclass, start_value, false) FROM pg_sequences "
    "WHERE last_value IS NOT NULL"
)


class Broom:
    """Its connection is kept: to connect, and to have PostgreSQL look up every table anew, took four times as long as
    the sweeping."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None

    async def sweep(self) -> None:
        """No rows, no numbers given out, nobody else connected."""
        try:
            await self._sweep()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self._connection = None  # a test has cut every connection, this one too
            await self._sweep()

    async def _sweep(self) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(_ALONE)
        rows = "".join(f'DELETE FROM "{table.name}";' for table in reversed(SQLModel.metadata.sorted_tables))
        await self._connection.execute(rows + _FROM_ONE)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
