"""Shells: the sandboxed sessions that are kept, what one uses and holds, and closing it."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import NotFound
from gofer.runs.shell_inspection import close_shell, seen, told
from gofer.store.tables import agents, shells
from gofer.web.api.http import MOST_ROWS, RequestModel, answered, platform_of, queried, rows


class ShellFilter(RequestModel):
    """Which shells to list, the last used first."""

    conversation: str = ""
    limit: int = Field(default=200, ge=1, le=MOST_ROWS)


async def index(request: Request) -> Response:
    """List shells."""
    wanted = queried(request, ShellFilter)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"shells": found})


class Inside(RequestModel):
    """Where to look."""

    path: str = Field(
        default="", max_length=4096, description="A directory in the workspace; else all of it."
    )


async def show(request: Request) -> Response:
    """Show a shell, what it uses now and what a directory of it holds.

    Only the machine that it is on knows more than its limits.
    """
    wanted = queried(request, Inside)
    row = await platform_of(request).database.read(
        partial(
            find_shell,
            conversation_id=request.path_params["conversation"],
            agent_id=request.path_params["agent"],
        )
    )
    inside = await seen(row.pop("record"), wanted.path)
    return answered(request, {"shell": row, **inside})


async def close(request: Request) -> Response:
    """End a shell: its processes go within a minute, its files stay for the next."""
    database = platform_of(request).database
    conversation_id = request.path_params["conversation"]
    agent_id = await database.read(partial(_agent_id, called=request.path_params["agent"]))
    await database.write(partial(close_shell, conversation_id=conversation_id, agent_id=agent_id))
    return answered(request, {"conversation_id": conversation_id, "agent_id": agent_id})


def _list(connection: Connection, wanted: ShellFilter) -> list[dict[str, Any]]:
    query = _WITH_NAMES.order_by(shells.c.used_at.desc()).limit(wanted.limit)
    if wanted.conversation:
        query = query.where(shells.c.conversation_id == wanted.conversation)
    found = [{**row, **told(row["record"])} for row in rows(connection, query)]
    for row in found:
        del row["record"]
    return found


def find_shell(connection: Connection, conversation_id: str, agent_id: str) -> dict[str, Any]:
    """A shell's row with what its record says, and the record itself; raises NotFound.

    The agent may be given by its name.
    """
    agent_id = _agent_id(connection, agent_id)
    query = _WITH_NAMES.where(shells.c.conversation_id == conversation_id, shells.c.agent_id == agent_id)
    for row in rows(connection, query):
        return {**row, **told(row["record"])}
    raise NotFound("There is no such shell; it may have been closed.")


def _agent_id(connection: Connection, called: str) -> str:
    """The id of the agent of this name; what is no agent's name is an id."""
    found = connection.execute(select(agents.c.id).where(agents.c.name == called)).scalar()
    return str(found or called)


_WITH_NAMES = select(*shells.c, func.coalesce(agents.c.name, "").label("agent")).outerjoin(
    agents, agents.c.id == shells.c.agent_id
)
