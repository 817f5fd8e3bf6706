"""Health of the connections and findings of the doctor, fetched in the background so that no page waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.app import Platform
from gofer.connections.health import health_of
from gofer.doctor import Finding, examine, look_around
from gofer.integration import Health
from gofer.store.tables import connections, deliveries
from gofer.web.queries import rows

FRESH_SECONDS = 60.0
"""Seconds for which a health is shown without asking the service again."""


@dataclass(slots=True)
class _Known:
    health: Health
    at: float


class Checks:
    """Keeps the last answers, and asks again when a page shows an old one."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self.findings: list[Finding] = []
        self.examined_at: float | None = None

    async def connections(self) -> list[dict[str, Any]]:
        """Every connection with when it was last heard of and how it was doing when last asked."""
        found = await self._platform.database.read(_connections)
        for each in found:
            if each["enabled"]:
                self._ask_if_stale(each["id"])
            known = self._known.get(each["id"])
            each["health"] = asdict(known.health) if known else None
            each["asked_at"] = known.at if known else None
        return found

    def _ask_if_stale(self, connection_id: str) -> None:
        known = self._known.get(connection_id)
        if connection_id in self._asking or (known and time.time() - known.at < FRESH_SECONDS):
            return
        task = asyncio.create_task(self.ask(connection_id))
        self._asking[connection_id] = task
        task.add_done_callback(lambda _: self._asking.pop(connection_id, None))

    async def ask(self, connection_id: str) -> Health:
        """Ask the service now."""
        health = await health_of(self._platform, connection_id)
        self._known[connection_id] = _Known(health, time.time())
        return health

    def learned(self, connection_id: str, health: Health) -> None:
        """What setting it up has said."""
        self._known[connection_id] = _Known(health, time.time())

    async def examine(self) -> None:
        """The doctor's whole round."""
        around = await asyncio.to_thread(look_around, self._platform.settings, serving=True)
        self.findings = [*around, *await examine(self._platform)]
        self.examined_at = time.time()


def _connections(connection: Connection) -> list[dict[str, Any]]:
    inner = deliveries.alias()
    heard = (
        select(func.max(inner.c.id))
        .where(inner.c.connection_id == connections.c.id)
        .correlate(connections)
        .scalar_subquery()
    )
    query = (
        select(
            connections.c.id, connections.c.name, connections.c.integration, connections.c.enabled,
            deliveries.c.received_at.label("heard_at"),
        )
        .select_from(connections.outerjoin(deliveries, deliveries.c.id == heard))
        .order_by(connections.c.created_at)
    )  # fmt: skip
    return rows(connection, query)
