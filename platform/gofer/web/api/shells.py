"""Shells: the sandboxed sessions that are kept, what one uses and holds, and closing it."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request

from gofer.runs.shell_inspection import seen
from gofer.web.api.http import MAX_ROWS, RequestModel, platform_of
from gofer.web.auth import visitor_of
from gofer.web.queries.shells import end_shell, find_shell, list_shells


class ShellFilter(RequestModel):
    """Which shells to list, the last used first."""

    conversation: str = ""
    limit: int = Field(default=200, ge=1, le=MAX_ROWS)


async def index(request: Request, query: ShellFilter) -> dict[str, Any]:
    """List shells."""
    found = await platform_of(request).database.read(
        list_shells, conversation=query.conversation, limit=query.limit
    )
    for row in found:
        del row["title"]
    return {"shells": found}


class Inside(RequestModel):
    """Where to look."""

    path: str = Field(
        default="", max_length=4096, description="A directory in the workspace; else all of it."
    )


async def show(request: Request, query: Inside) -> dict[str, Any]:
    """Show a shell, what it uses now and what a directory of it holds.

    Only the machine that it is on knows more than its limits.
    """
    visitor, named = visitor_of(request), _named(request)
    row, record = await platform_of(request).database.read(find_shell, **named, visitor=visitor)
    del row["title"]
    return {"shell": row, **await seen(record, query.path)}


async def close(request: Request) -> dict[str, Any]:
    """End a shell: its processes go within a minute, its files stay for the next."""
    named = _named(request)
    agent_id = await platform_of(request).database.write(end_shell, **named)
    return {"conversation_id": named["conversation_id"], "agent_id": agent_id}


def _named(request: Request) -> dict[str, Any]:
    return {
        "conversation_id": request.path_params["conversation"],
        "agent": request.path_params["agent"],
    }
