"""Entries of the audit log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from gofer.store.audit import CHAIN
from gofer.store.tables import audit_entries
from gofer.web.queries import rows, without


def list_entries(
    connection: Connection, *, member: str = "", action: str = "", before: int | None = None, limit: int
) -> list[dict[str, Any]]:
    """The newest first; `member` is an id or a name."""
    entry = audit_entries.c
    query = select(*without(audit_entries, "workspace_id", *CHAIN)).order_by(entry.id.desc()).limit(limit)
    if member:
        query = query.where((entry.member_id == member) | (entry.name == member))
    if action:
        query = query.where(entry.action == action)
    if before is not None:
        query = query.where(entry.id < before)
    return rows(connection, query)
