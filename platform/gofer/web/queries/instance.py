"""The instance's processes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from gofer.store.db_time import now
from gofer.store.tables import workers
from gofer.web.queries import rows

PROCESS_TIMEOUT = 60.0
"""Seconds without a sign after which a process no longer counts as running."""


def list_processes(connection: Connection) -> list[dict[str, Any]]:
    """Those that run now, the oldest first."""
    alive = workers.c.seen_at > now() - PROCESS_TIMEOUT
    return rows(connection, select(workers).where(alive).order_by(workers.c.started_at))
