"""Connections: the configured accounts."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.app import Platform
from gofer.connections.changes import find_connection
from gofer.connections.health import set_up
from gofer.integration import Health
from gofer.jobs.notifications import JOBS
from gofer.runs.agent_files import AgentFiles, choosable
from gofer.store.tables import connections, deliveries, secrets
from gofer.web.queries import rows, without


def list_connections(connection: Connection) -> list[dict[str, Any]]:
    """The oldest first."""
    return rows(connection, select(*without(connections)).order_by(connections.c.created_at))


def read_connection(connection: Connection, connection_id: str) -> dict[str, Any]:
    """A connection by id or name, with its secrets' names and when it last got a delivery; raises NotFound."""
    row = find_connection(connection, connection_id)
    names = select(secrets.c.name).where(secrets.c.owner == row.id).order_by(secrets.c.name)
    received = select(func.max(deliveries.c.received_at), func.count())
    last, count = connection.execute(received.where(deliveries.c.connection_id == row.id)).one()
    return {
        "connection": {column.name: getattr(row, column.name) for column in without(connections)},
        "secrets": list(connection.execute(names).scalars()),
        "deliveries": count,
        "last_delivery_at": last,
    }


def hook_url(platform: Platform, connection_id: str) -> str | None:
    """The URL that its service posts to: below the public URL, or below this process's address."""
    base = platform.settings.public_url.rstrip("/") or platform.url
    return f"{base}/hooks/{connection_id}" if base else None


async def agents_to_choose(platform: Platform) -> list[str]:
    """The agents that may answer what no route fits."""
    return await asyncio.to_thread(choosable, AgentFiles.of(platform.settings))


async def apply_change(platform: Platform, connection_id: str) -> Health:
    """Prepare the service for a connection as it is now; returns how it is."""
    await platform.secrets_changed()
    health = await set_up(platform, connection_id)
    await platform.database.write(platform.start_inflow)
    platform.signals.wake(JOBS)
    return health
