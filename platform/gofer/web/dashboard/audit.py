"""The audit log: every change somebody asked for, and how it was answered."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.store.tables import audit_entries
from gofer.web.dashboard.endpoints import PER_PAGE, number_of, page, rows
from gofer.web.dashboard.render import platform_of, render


@page("operator")
async def index(request: Request) -> Response:
    """The newest first."""
    name = request.query_params.get("name", "")
    before = number_of(request, "before")
    entries = await platform_of(request).database.read(partial(read, name=name, before=before))
    more = entries[-1]["id"] if len(entries) == PER_PAGE else None
    return render(request, "audit.html", entries=entries, name=name, more=more)


def read(connection: Connection, name: str, before: int | None) -> list[dict[str, Any]]:
    """A page of entries."""
    query = select(audit_entries).order_by(audit_entries.c.id.desc()).limit(PER_PAGE)
    if name:
        query = query.where(audit_entries.c.name == name)
    if before is not None:
        query = query.where(audit_entries.c.id < before)
    return rows(connection, query)
