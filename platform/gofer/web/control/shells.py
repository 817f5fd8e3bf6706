"""Shells: the sandboxed sessions that are kept, and closing one."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.agent.closing import close_shell
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


async def close(request: Request) -> Response:
    """End a shell: its processes go within a minute, its files stay for the next."""
    conversation_id, agent_id = request.path_params["conversation"], request.path_params["agent"]
    await platform_of(request).database.write(
        partial(close_shell, conversation_id=conversation_id, agent_id=agent_id)
    )
    return answered(request, {"conversation_id": conversation_id, "agent_id": agent_id})


def _list(connection: Connection, wanted: Wanted) -> list[dict[str, Any]]:
    columns = (shells.c.conversation_id, shells.c.agent_id, shells.c.trust, shells.c.used_at)
    query = select(*columns).order_by(shells.c.used_at.desc()).limit(wanted.limit)
    if wanted.conversation:
        query = query.where(shells.c.conversation_id == wanted.conversation)
    return rows(connection, query)
