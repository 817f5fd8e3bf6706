"""The audit log: every change that somebody asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.alarms import examined, remember_head
from gofer.store import audit as chain
from gofer.store.tables import audit_entries
from gofer.web.api.http import Paged, RequestModel, next_cursor, platform_of
from gofer.web.auth import note
from gofer.web.queries import rows
from gofer.web.queries.audit import list_entries

MAX_EXPORTED = 1000
MAX_PLACE = 2**62


class AuditFilter(Paged):
    """Which changes to list, newest first."""

    member: str = Field(default="", max_length=200, description="By this member only, by id or name.")
    action: str = Field(default="", max_length=200, description="Of this kind only, such as jobs.cancel.")


class KnownHead(RequestModel):
    """A head that was seen before, which the log must still reach."""

    place: int = Field(default=0, ge=0, le=MAX_PLACE)
    link: str = Field(default="", pattern="^([0-9a-f]{64})?$")


class ChainRange(RequestModel):
    """Which entries to export: those after a place in the chain, oldest first."""

    after: int = Field(default=0, ge=0, le=MAX_PLACE)


async def index(request: Request, query: AuditFilter) -> dict[str, Any]:
    """List changes."""
    filters: dict[str, Any] = {"member": query.member, "action": query.action, "before": query.before}
    found = await platform_of(request).database.read(list_entries, limit=query.limit, **filters)
    return {"entries": found, "next": next_cursor(found, query.limit)}


async def verify(request: Request, seen: KnownHead) -> dict[str, Any]:
    """Check that the log is whole up to its signed head, and that it still holds what this machine has seen of it."""
    platform = platform_of(request)
    verdict = await examined(platform)
    if seen.place:
        head = chain.Head(seen.place, seen.link)
        verdict = await platform.database.read(chain.verify, seen=head)
    return dataclasses.asdict(verdict)


async def export(request: Request, wanted: ChainRange) -> dict[str, Any]:
    """Export a part of the log with its chain, to keep elsewhere."""
    return await platform_of(request).database.read(_export, after=wanted.after)


async def accept(request: Request) -> dict[str, Any]:
    """Build the chain anew over the entries that are there. Use it when you know why the log was not whole."""
    platform = platform_of(request)
    problems = (await examined(platform)).problems
    note(request, problems=list(problems[:20]))
    count = await platform.database.write(chain.begin_chain)
    await remember_head(platform, anew=True)
    return {"entries": count, "problems": problems}


def _export(connection: Connection, after: int) -> dict[str, Any]:
    entry = audit_entries.c
    query = select(audit_entries).where(entry.place > after).order_by(entry.place).limit(MAX_EXPORTED)
    head = chain.current_head(connection)
    found = []
    for row in rows(connection, query):
        del row["workspace_id"]
        found.append({**row, "link": _hex(row["link"]), "end_mac": _hex(row["end_mac"])})
    return {"entries": found, "head": dataclasses.asdict(head) if head is not None else None}


def _hex(value: bytes | None) -> str:
    return bytes(value or b"").hex()
