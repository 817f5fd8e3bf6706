"""Conversations: listing them, and purging one."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.purging import purge_conversation, remove_shell_files
from gofer.store.tables import bindings, conversations
from gofer.web.control.asking import BY, MOST_ROWS, Question, answered, platform_of, queried, rows, without


class Wanted(Question):
    """Which conversations to list, newest first."""

    connection: str = ""
    limit: int = Field(default=50, ge=1, le=MOST_ROWS)


async def index(request: Request) -> Response:
    """List conversations with where they are held."""
    wanted = queried(request, Wanted)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"conversations": found})


def _list(connection: Connection, wanted: Wanted) -> list[dict[str, Any]]:
    query = (
        select(*without(conversations), bindings.c.connection_id, bindings.c.ref)
        .outerjoin(bindings, bindings.c.conversation_id == conversations.c.id)
        .order_by(conversations.c.created_at.desc())
        .limit(wanted.limit)
    )
    if wanted.connection:
        query = query.where(bindings.c.connection_id == wanted.connection)
    return rows(connection, query)


async def purge(request: Request) -> Response:
    """Destroy what was said in one, everywhere."""
    platform = platform_of(request)
    conversation_id = request.path_params["id"]
    purged = await platform.database.write(
        partial(purge_conversation, vault=platform.vault, conversation_id=conversation_id, by=BY)
    )
    shells = platform.settings.data_dir / "shells"
    await asyncio.to_thread(remove_shell_files, shells, conversation_id)
    return answered(request, dataclasses.asdict(purged))
