"""Limits what one unknown author may cause within an hour: messages that make jobs, and look-ups at their service.

A service vouches for who wrote, not that we know them. Without a bound a stranger could have a job made for each of a
thousand comments, and spend what the service lets us ask. The counts are of one process and forgotten at its end.
"""

from __future__ import annotations

import time
from functools import partial

from sqlalchemy import Connection, literal_column, select

from gofer.identity import known_principal
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import Trust, messages

HOUR = 3600.0
MAX_PER_HOUR = 30
TRUSTED_FOR = 1.0
"""Seconds for which a busy author is remembered to be no stranger."""
MAX_AUTHORS = 10_000

Author = tuple[str, str]
"""A connection's id, and the service's id of the author."""


class StrangerLimit:
    """Counts by connection and author."""

    def __init__(self, max_per_hour: int = MAX_PER_HOUR) -> None:
        self.max_per_hour = max_per_hour
        self._messages = _Hour()
        self._lookups = _Hour()
        self._trusted_until: dict[Author, float] = {}

    async def refuses(
        self, database: Database, *, workspace_id: str, integration: str, connection_id: str, author: str
    ) -> bool:
        """Count a message; True when it is a stranger's and one too many."""
        key = (connection_id, author)
        if self._messages.add(key) <= self.max_per_hour:
            return False
        if self._trusted_until.get(key, 0) > time.monotonic():
            return False
        # Looked at each time: whoever is let in this moment is heard from the next message on.
        stranger = await database.read(
            partial(
                _is_stranger,
                workspace_id=workspace_id,
                integration=integration,
                connection_id=connection_id,
                author=author,
            )
        )
        if not stranger:
            if len(self._trusted_until) >= MAX_AUTHORS:
                self._trusted_until.clear()
            self._trusted_until[key] = time.monotonic() + TRUSTED_FOR
        return stranger

    def may_look_up(self, connection_id: str, author: str) -> bool:
        """Whether somebody who turned out to be a stranger again and again may be looked up once more."""
        return self._lookups.count((connection_id, author)) < self.max_per_hour

    def was_stranger(self, connection_id: str, author: str) -> None:
        """Count a look-up that found a stranger."""
        self._lookups.add((connection_id, author))


class _Hour:
    """Counts within the hour; all are forgotten together when it is over, or when there are too many to remember."""

    def __init__(self) -> None:
        self._counts: dict[Author, int] = {}
        self._over_at = 0.0

    def add(self, key: Author) -> int:
        self._renew()
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def count(self, key: Author) -> int:
        self._renew()
        return self._counts.get(key, 0)

    def _renew(self) -> None:
        if time.monotonic() >= self._over_at or len(self._counts) > MAX_AUTHORS:
            self._counts.clear()
            self._over_at = time.monotonic() + HOUR


def _is_stranger(
    connection: Connection, *, workspace_id: str, integration: str, connection_id: str, author: str
) -> bool:
    """Whether nobody is paired with an author, and a look at them within the hour found a stranger.

    Who was not looked at yet is none: what many write at once, or wrote while we were away, must not be lost.
    """
    person = known_principal(connection, workspace_id, integration, author)
    if person is not None and person.role in ("owner", "member"):
        return False
    found = (
        select(messages.c.seq)
        .where(messages.c.connection_id == connection_id, messages.c.author == author)
        .where(messages.c.trust == literal_column(f"'{Trust.STRANGER}'"))  # as the partial index has it
        .where(messages.c.admitted_at > now() - HOUR)
        .limit(1)
    )
    return connection.execute(found).first() is not None
