"""The audit log: every change that somebody asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.store.tables import audit_entries
from gofer.web.control.asking import Paged, answered, next_of, platform_of, queried, rows, without


class Wanted(Paged):
    """Which changes to list, newest first."""

    member: str = Field(default="", max_length=200, description="By this member only, by id or name.")
    action: str = Field(default="", max_length=200, description="Of this kind only, such as jobs.cancel.")


async def index(request: Request) -> Response:
    """List changes."""
    wanted = queried(request, Wanted)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"entries": found, "next": next_of(found, wanted.limit)})


def _list(connection: Connection, wanted: Wanted) -> list[dict[str, Any]]:
    entry = audit_entries.c
    query = select(*without(audit_entries, "workspace_id")).order_by(entry.id.desc()).limit(wanted.limit)
    if wanted.member:
        query = query.where((entry.member_id == wanted.member) | (entry.name == wanted.member))
    if wanted.action:
        query = query.where(entry.action == wanted.action)
    if wanted.before is not None:
        query = query.where(entry.id < wanted.before)
    return rows(connection, query)
