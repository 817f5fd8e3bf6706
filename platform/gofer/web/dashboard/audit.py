"""The audit log: every change somebody asked for, and how it was answered."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gofer.web.dashboard.endpoints import PER_PAGE, page, query_number
from gofer.web.dashboard.render import platform_of, render
from gofer.web.queries.audit import list_entries


@page("operator")
async def index(request: Request) -> Response:
    """The newest first."""
    name = request.query_params.get("name", "")
    before = query_number(request, "before")
    entries = await platform_of(request).database.read(
        list_entries, member=name, before=before, limit=PER_PAGE
    )
    more = entries[-1]["id"] if len(entries) == PER_PAGE else None
    return render(request, "audit.html", entries=entries, name=name, more=more)
