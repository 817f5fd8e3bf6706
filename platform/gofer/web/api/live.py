"""A conversation as it goes: the words of an answer while they come, what is done, and questions to answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.errors import Malformed
from gofer.store.events import Cursor
from gofer.web.api.http import RequestModel, platform_of
from gofer.web.auth import record_reading, visitor_of, watch_over
from gofer.web.chat.follow import follow, read_now
from gofer.web.chat.timeline import Timeline
from gofer.web.event_source import Stream
from gofer.web.queries.conversations import find_conversation

MAX_STREAMS = 50
"""Streams of one member at once."""


class LiveFilter(RequestModel):
    """Where to begin."""

    after: str = Field(
        default="",
        pattern=r"^([0-9]{1,18}\.[0-9]{1,18})?$",
        description="The id of the last frame seen, or 0.0 for all. When empty, new ones only. "
        "`Last-Event-ID` does the same.",
    )


async def follow_one(request: Request, wanted: LiveFilter) -> Response:
    """Follow a conversation as it goes (server-sent events).

    `text` and `output` carry words as they are said and printed; `item` is something that stands in the conversation
    from now on, and `state` what the agent is at. Frames that can be resumed from have an id.
    """
    platform = platform_of(request)
    conversation_id = request.path_params["id"]
    visitor = visitor_of(request)
    await platform.database.read(find_conversation, conversation_id=conversation_id, visitor=visitor)
    given = request.headers.get("last-event-id") or wanted.after
    try:
        cursor = Cursor.parse(given) if given else None
    except ValueError:
        raise Malformed("Last-Event-ID: is not the id of a frame.") from None
    if request.method == "HEAD":
        return Response(media_type=Stream.media_type)
    await record_reading(request, conversation_id)
    return Stream(
        _frames(platform, conversation_id, cursor),
        request.app.state.watching,
        visitor.member_id,
        most=MAX_STREAMS,
        refusal=partial(watch_over, platform, request, "viewer"),
    )


async def _frames(platform: Platform, conversation_id: str, cursor: Cursor | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    if cursor is None:
        # The place of now, of which the reader is told at once: what it says next cannot be missed.
        now = await platform.database.read(read_now, platform=platform, conversation_id=conversation_id)
        cursor = now.cursor
        yield _frame({"type": "state", "state": now.state}, str(cursor))
    async for news in follow(platform, conversation_id, cursor):
        if isinstance(news, Timeline):
            for item in news.items:
                told = {name: value for name, value in item.items() if name != "place"}
                yield _frame({"type": "item", "item": told})
            yield _frame({"type": "state", "state": news.state}, str(news.cursor))
        else:
            yield _frame(news)


def _frame(frame: Mapping[str, Any], place: str = "") -> bytes:
    head = f"id: {place}\n" if place else ""
    return f"{head}data: {json.dumps(frame, default=str)}\n\n".encode()
