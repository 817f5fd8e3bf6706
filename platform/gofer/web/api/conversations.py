"""Conversations: listing them, reading one, saying something, purging one."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select, tuple_
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.errors import NotFound
from gofer.purge import purge_conversation, remove_shell_files
from gofer.store.content import open_message
from gofer.store.encryption import conversation_key
from gofer.store.tables import bindings, conversations, messages
from gofer.vault.envelope import DataKey
from gofer.web.api.http import (
    MOST_ROWS,
    EmptyBody,
    Paged,
    RequestModel,
    answered,
    asked,
    by,
    next_of,
    platform_of,
    queried,
    rows,
    without,
)
from gofer.web.auth import words_read
from gofer.web.titles import BEGUN, with_titles


class ConversationFilter(RequestModel):
    """Which conversations to list, newest first."""

    connection: str = ""
    cursor: str = Field(default="", max_length=200, description="`next` of the page before.")
    limit: int = Field(default=50, ge=1, le=MOST_ROWS)


async def index(request: Request) -> Response:
    """List conversations with where they are held."""
    platform, wanted = platform_of(request), queried(request, ConversationFilter)
    found = await platform.database.read(partial(_list, wanted=wanted))
    found = await with_titles(platform, found, by="id")
    return answered(request, {"conversations": found, "next": next_of(found, wanted.limit)})


_SHOWN = (
    select(*without(conversations), bindings.c.connection_id, bindings.c.ref)
    .outerjoin(bindings, bindings.c.conversation_id == conversations.c.id)
    .order_by(conversations.c.created_at.desc(), conversations.c.id.desc())
)


def _list(connection: Connection, wanted: ConversationFilter) -> list[dict[str, Any]]:
    query = _SHOWN.where(BEGUN).limit(wanted.limit)
    if wanted.connection:
        query = query.where(bindings.c.connection_id == wanted.connection)
    if wanted.cursor:
        last = find_conversation(connection, wanted.cursor)
        place = tuple_(conversations.c.created_at, conversations.c.id)
        query = query.where(place < tuple_(last["created_at"], last["id"]))
    return rows(connection, query)


async def show(request: Request) -> Response:
    """One conversation."""
    found = await platform_of(request).database.read(
        partial(find_conversation, conversation_id=request.path_params["id"])
    )
    (titled,) = await with_titles(platform_of(request), [found], by="id")
    return answered(request, titled)


def find_conversation(connection: Connection, conversation_id: str) -> dict[str, Any]:
    """A conversation with where it is held; raises NotFound."""
    found = rows(connection, _SHOWN.where(conversations.c.id == conversation_id).limit(1))
    if not found:
        raise NotFound(
            f"There is no conversation {conversation_id[:60]!r}. `gofer conversations list` shows those there are."
        )
    return found[0]


async def read(request: Request) -> Response:
    """What was said in one, newest first."""
    platform, wanted = platform_of(request), queried(request, Paged)
    found = await platform.database.read(
        partial(_read, platform=platform, conversation_id=request.path_params["id"], wanted=wanted)
    )
    await words_read(request, request.path_params["id"])
    return answered(request, {"messages": found, "next": next_of(found, wanted.limit, "seq")})


def _read(
    connection: Connection, platform: Platform, conversation_id: str, wanted: Paged
) -> list[dict[str, Any]]:
    purged = find_conversation(connection, conversation_id)["purged_at"] is not None
    key = None if purged else conversation_key(connection, platform.vault, conversation_id)
    query = (
        select(messages)
        .where(messages.c.conversation_id == conversation_id)
        .order_by(messages.c.seq.desc())
        .limit(wanted.limit)
    )
    if wanted.before is not None:
        query = query.where(messages.c.seq < wanted.before)
    return [_told(row, key) for row in connection.execute(query)]


def _told(row: Any, key: DataKey | None) -> dict[str, Any]:
    said = None
    if key is not None and row.sealed is not None:
        said = open_message(key, row.conversation_id, row.seq, row.sealed)
    return {
        "seq": row.seq,
        "author": row.author,
        "name": said.author.name if said is not None else "",
        "trust": row.trust,
        "event": row.event,
        "addressed": row.addressed,
        "text": said.text if said is not None else None,
        "attachments": [each.name for each in said.attachments] if said is not None else [],
        "created_at": row.created_at,
    }


async def purge(request: Request) -> Response:
    """Destroy what was said in one, everywhere."""
    platform = platform_of(request)
    await asked(request, EmptyBody)
    conversation_id = request.path_params["id"]
    purged = await platform.database.write(
        partial(purge_conversation, vault=platform.vault, conversation_id=conversation_id, by=by(request))
    )
    shells = platform.settings.data_dir / "shells"
    await asyncio.to_thread(remove_shell_files, shells, conversation_id)
    return answered(request, dataclasses.asdict(purged))
