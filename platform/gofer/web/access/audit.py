"""The record of changes: who asked for what, when, from where, and how it was answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, insert, update
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import GoferError
from gofer.platform import Platform
from gofer.store.clock import now
from gofer.store.open import FIRST_WORKSPACE
from gofer.store.tables import audit_entries
from gofer.web.access.visitor import Visitor, caller_of
from gofer.web.problems import status_of

log = structlog.get_logger()

LONGEST = 200


async def audited(request: Request, visitor: Visitor, do: Callable[[], Awaitable[Response]]) -> Response:
    """Do what was asked with an entry written before and completed after."""
    platform: Platform = request.app.state.platform
    entry = await platform.database.write(partial(_begin, **_facts(request, visitor)))
    status = 500
    try:
        response = await do()
        status = response.status_code
    except Exception as error:
        status = getattr(error, "status_code", None) or status_of(error)  # type: ignore[arg-type]
        raise
    finally:
        data = platform.redactor.redact_value(getattr(request.state, "audit", {}))
        try:
            await platform.database.write(partial(_end, entry=entry, status=status, data=data))
        except GoferError as error:
            # The change was made, and that it was asked for is on record.
            log.warning("audit.not_completed", entry=entry, status=status, error=str(error))
    return response


def note(request: Request, **facts: Any) -> None:
    """Add facts to the entry of the change at hand. Never words, never secrets."""
    request.state.audit = {**getattr(request.state, "audit", {}), **facts}


def _facts(request: Request, visitor: Visitor) -> dict[str, Any]:
    route = request.scope.get("route")
    named = ", ".join(str(value) for value in request.path_params.values())
    return {
        "workspace_id": FIRST_WORKSPACE,
        "member_id": visitor.member_id,
        "name": visitor.name,
        "via": visitor.via,
        "address": caller_of(request).address,
        "action": str(getattr(route, "name", "") or request.url.path)[:LONGEST],
        "subject": named[:LONGEST],
    }


def _begin(connection: Connection, **facts: Any) -> int:
    made = insert(audit_entries).values(**facts, data={}, status=0, at=now()).returning(audit_entries.c.id)
    return int(connection.execute(made).scalar_one())


def signed_in(connection: Connection, *, member_id: str, name: str, address: str, by: str) -> None:
    """Note that somebody came in."""
    who = {"workspace_id": FIRST_WORKSPACE, "member_id": member_id, "name": name, "via": "session"}
    what = {"address": address, "action": "session.begin", "subject": "", "data": {"by": by}, "status": 303}
    connection.execute(insert(audit_entries).values(**who, **what, at=now()))


def _end(connection: Connection, entry: int, status: int, data: dict[str, Any]) -> None:
    connection.execute(
        update(audit_entries).where(audit_entries.c.id == entry).values(status=status, data=data)
    )
