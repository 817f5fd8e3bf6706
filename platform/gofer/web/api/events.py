"""Live events: a stream that is resumed where it broke off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.errors import Malformed
from gofer.jobs.control import find_job
from gofer.jobs.event_stream import EventFilter as Watched
from gofer.jobs.event_stream import cursor_of
from gofer.store.events import Cursor
from gofer.store.tables import FINAL, JobState, conversations, events, jobs
from gofer.web.api.http import Number, RequestModel, platform_of
from gofer.web.auth import (
    Visitor,
    is_readable,
    no_conversation,
    readable,
    record_reading,
    visitor_of,
    watch_over,
)
from gofer.web.event_source import Stream

PULSE = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection."""
MAX_STREAMS_EACH = 250
"""Streams of one member at once; others want to watch, too."""


class EventStreamFilter(RequestModel):
    """Which events to follow. A stream of one job ends with the job."""

    job: Number | None = None
    conversation: str = Field(default="", max_length=200)
    after: str = Field(
        default="",
        pattern=r"^([0-9]{1,18}\.[0-9]{1,18})?$",
        description="The id of the last event seen, or 0.0 for all. When empty, all of a job, else new ones only. "
        "`Last-Event-ID` does the same.",
    )


async def follow(request: Request, wanted: EventStreamFilter) -> Response:
    """Follow events as they happen (server-sent events).

    Each has an id to resume from (send it as Last-Event-ID, as browsers do by themselves) and an event as JSON.
    The stream of a job ends with an event called `end` that has the job's state.
    """
    platform = platform_of(request)
    cursor = _place(request.headers.get("last-event-id") or wanted.after)
    where = await platform.database.read(_check, wanted=wanted)
    watched = Watched(wanted.job, wanted.conversation or None)
    platform.follower.check_room()
    if wanted.job is not None and cursor is None:
        cursor = Cursor()
    if request.method == "HEAD":
        return Response(media_type=Stream.media_type)
    of_job = f"job {wanted.job}" if wanted.job is not None else "events"
    await record_reading(request, where, of_job)
    visitor = visitor_of(request)
    return Stream(
        _frames(platform, watched, cursor, visitor),
        request.app.state.watching,
        visitor.member_id,
        most=MAX_STREAMS_EACH,
        refusal=partial(watch_over, platform, request, "viewer"),
    )


def _place(given: str) -> Cursor | None:
    try:
        return Cursor.parse(given) if given else None
    except ValueError:
        raise Malformed("Last-Event-ID: is not the id of an event.") from None


def _check(connection: Connection, wanted: EventStreamFilter) -> str | None:
    """The conversation whose events are wanted, if it is one; raises NotFound."""
    job = find_job(connection, wanted.job) if wanted.job is not None else None
    if wanted.conversation and not is_readable(connection, wanted.conversation, None):
        raise no_conversation(wanted.conversation)
    return wanted.conversation or (job.conversation_id if job is not None else None)


async def _frames(
    platform: Platform, watched: Watched, cursor: Cursor | None, visitor: Visitor
) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    seen = cursor or Cursor()
    if end := await _end(platform, watched, seen):
        yield end
        return
    async for found in platform.follower.watch(watched, cursor, pulse=PULSE):
        hidden = await platform.database.read(_hidden, found=found, visitor=visitor)
        for event in found:
            if event["conversation_id"] not in hidden:
                yield _line(event)
            seen = cursor_of(event)
        if end := await _end(platform, watched, seen):
            yield end
            return
        if not found:
            yield b": still here\n\n"


def _hidden(connection: Connection, found: Sequence[Mapping[str, Any]], visitor: Visitor) -> Collection[str]:
    """Conversations of these events that somebody may not read, asked each time: what they may read can change."""
    named = {event["conversation_id"] for event in found} - {None}
    if not named or visitor.may("owner"):
        return ()
    query = select(conversations.c.id).where(conversations.c.id.in_(named), readable(connection, visitor))
    return named - set(connection.execute(query).scalars())


async def _end(platform: Platform, watched: Watched, seen: Cursor) -> bytes:
    """The last thing to say of a job that has ended and of which everything was seen; else nothing."""
    if watched.job_id is None:
        return b""
    state, last = await platform.database.read(_last, job_id=watched.job_id)
    if state in FINAL and seen >= last:
        return f"event: end\ndata: {json.dumps({'state': state})}\n\n".encode()
    return b""


def _last(connection: Connection, job_id: int) -> tuple[str, Cursor]:
    """A job's state and the place of its last event; one that was pruned is done with."""
    row = connection.execute(
        select(jobs.c.state, events.c.tx, events.c.id)
        .outerjoin(events, (events.c.job_id == jobs.c.id) & (events.c.seq == jobs.c.event_seq))
        .where(jobs.c.id == job_id)
    ).one_or_none()
    if row is None:
        return JobState.DONE, Cursor()
    return str(row.state), Cursor(row.tx or 0, row.id or 0)


def _line(event: Mapping[str, Any]) -> bytes:
    return f"id: {cursor_of(event)}\ndata: {json.dumps(event, default=str)}\n\n".encode()
