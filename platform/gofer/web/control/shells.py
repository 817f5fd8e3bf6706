"""Shells: the sandboxed sessions that are kept."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.store.tables import shells
from gofer.web.control.asking import MOST_ROWS, Question, answered, platform_of, queried, rows


class Wanted(Question):
    """Which shells to list, the last used first."""

    conversation: str = ""
    limit: int = Field(default=200, ge=1, le=MOST_ROWS)


async def index(request: Request) -> Response:
    """List shells."""
    wanted = queried(request, Wanted)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"shells": found})


def _list(connection: Connection, wanted: Wanted) -> list[dict[str, Any]]:
    columns = (shells.c.conversation_id, shells.c.agent_id, shells.c.trust, shells.c.used_at)
    query = select(*columns).order_by(shells.c.used_at.desc()).limit(wanted.limit)
    if wanted.conversation:
        query = query.where(shells.c.conversation_id == wanted.conversation)
    return rows(connection, query)
