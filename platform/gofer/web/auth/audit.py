"""The record of changes: who asked for what, when, from where, and how it was answered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.errors import GoferError
from gofer.store import audit
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import bindings
from gofer.web.auth.principal import Visitor, caller_of, visitor_of
from gofer.web.auth.privacy import require_readable
from gofer.web.problems import status_of

log = structlog.get_logger()

MAX_VALUE = 200
READ = "words.read"
"""The action of an entry for reading what others wrote."""
READ_EVERY = 3600.0
MAX_READERS = 10_000


async def audited(request: Request, visitor: Visitor, do: Callable[[], Awaitable[Response]]) -> Response:
    """Run a change with an audit entry that is written before it and completed after it."""
    platform: Platform = request.app.state.platform
    entry = await platform.database.write(_begin, **_facts(request, visitor))
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
            await platform.database.write(_end, entry=entry, status=status, data=data)
        except GoferError as error:
            # The change was made, and that it was asked for is on record.
            log.warning("audit.not_completed", entry=entry, status=status, error=str(error))
    return response


async def audited_as(
    platform: Platform,
    visitor: Visitor,
    do: Callable[[], Awaitable[Any]],
    *,
    action: str,
    subject: str,
    address: str,
) -> Any:
    """Run a change that no request asks for, with an entry as for one that does."""
    facts: dict[str, Any] = {
        "workspace_id": FIRST_WORKSPACE,
        "member_id": visitor.member_id,
        "name": visitor.name,
        "via": visitor.via,
        "address": address,
        "action": action[:MAX_VALUE],
        "subject": subject[:MAX_VALUE],
    }
    entry = await platform.database.write(_begin, **facts)
    status = 500
    try:
        done = await do()
        status = 200
    except Exception as error:
        status = status_of(error)  # type: ignore[arg-type]
        raise
    finally:
        with contextlib.suppress(GoferError):  # that it was asked for is on record
            await platform.database.write(_end, entry=entry, status=status, data={})
    return done


async def record_reading(request: Request, conversation_id: str | None, otherwise: str = "") -> None:
    """Record that somebody reads what others wrote, once an hour for each reader and conversation. Raises NotFound when
    they may not read it.

    `otherwise` names what belongs to no conversation. Reading one's own web chat is not recorded.
    """
    platform: Platform = request.app.state.platform
    if conversation_id:
        visitor = visitor_of(request)
        await platform.database.read(require_readable, conversation_id=conversation_id, visitor=visitor)
    await record_order(request, conversation_id, otherwise)


async def record_order(request: Request, conversation_id: str | None, otherwise: str = "") -> None:
    """The same for words that are theirs to read for another reason: an order of a host, a memory for everybody."""
    platform: Platform = request.app.state.platform
    lately: dict[tuple[str, str, str], float] = request.app.state.readings
    visitor, subject = visitor_of(request), conversation_id or otherwise
    reader = (visitor.via, visitor.member_id, subject)
    current = time.monotonic()
    if current - lately.get(reader, -READ_EVERY) < READ_EVERY:
        return
    facts = {**_facts(request, visitor), "action": READ, "subject": subject[:MAX_VALUE], "status": 200}
    data = {"by": str(getattr(request.scope.get("route"), "name", "") or request.url.path)[:MAX_VALUE]}
    await platform.database.write(_record_reading, facts={**facts, "data": data})
    if len(lately) >= MAX_READERS:
        lately.clear()
    lately[reader] = current


def _record_reading(connection: Connection, facts: dict[str, Any]) -> None:
    own = bindings.c.ref.startswith(f"{facts['member_id']}:", autoescape=True)
    mine = select(bindings.c.id).where(bindings.c.conversation_id == facts["subject"], own).limit(1)
    if not facts["member_id"] or connection.execute(mine).first() is None:
        audit.append(connection, facts)


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
        "action": str(getattr(route, "name", "") or request.url.path)[:MAX_VALUE],
        "subject": named[:MAX_VALUE],
    }


def _begin(connection: Connection, /, **facts: Any) -> int:
    return audit.append(connection, facts)


def signed_in(connection: Connection, *, member_id: str, name: str, address: str, by: str) -> None:
    """Record that a member signed in."""
    who = {"workspace_id": FIRST_WORKSPACE, "member_id": member_id, "name": name, "via": "session"}
    what = {"address": address, "action": "session.begin", "subject": "", "data": {"by": by}, "status": 303}
    audit.append(connection, {**who, **what})


def _end(connection: Connection, entry: int, status: int, data: dict[str, Any]) -> None:
    audit.end(connection, entry, status=status, data=data)
