"""When secrets were last used: gathered as they are, and written down now and then, not with each use."""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Connection

from gofer.errors import GoferError
from gofer.secrets.secret_store import mark_secret_used
from gofer.store.database import Database

log = structlog.get_logger()

NOTED_EVERY = 60.0
"""Seconds between two notes; the page of secrets has what is unwritten noted first."""


class Uses:
    """Which secrets this process has used since the last note."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._unwritten: set[tuple[str, str, str]] = set()

    def add(self, workspace_id: str, owner: str, name: str) -> None:
        """A secret was put to use."""
        self._unwritten.add((workspace_id, owner, name))

    async def note(self) -> None:
        """Write down what was used since the last time."""
        used, self._unwritten = sorted(self._unwritten), set()
        if not used:
            return

        def mark(connection: Connection) -> None:
            for workspace_id, owner, name in used:
                mark_secret_used(connection, workspace_id=workspace_id, owner=owner, name=name)

        await self._database.write(mark)

    async def keep_noting(self) -> None:
        """Do so now and then."""
        while True:
            await asyncio.sleep(NOTED_EVERY)
            try:
                await self.note()
            except GoferError as error:
                log.warning("secrets.uses_not_noted", error=str(error))
