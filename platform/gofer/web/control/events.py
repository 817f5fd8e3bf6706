"""Live events: a stream that is resumed where it broke off."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gofer.errors import Malformed, NotFound, TooBusy
from gofer.jobs.following import FellBehind, place_of
from gofer.jobs.following import Wanted as Watched
from gofer.jobs.steer import find_job
from gofer.platform import Platform
from gofer.store.events import Cursor
from gofer.store.tables import FINAL, JobState, conversations, events, jobs
from gofer.web.access import visitor_of
from gofer.web.control.asking import Number, Question, platform_of, queried

PULSE = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection."""
SEND_WITHIN = 15.0
"""Seconds a reader may take for what is sent; then it is cut off, and may come back where it was."""
MOST_EACH = 250
"""Streams of one member at once; others want to watch, too."""
LONGEST = 300.0
"""Seconds a stream lasts; whoever comes back is looked at anew, so that a lost role ends what it opened."""


class Wanted(Question):
    """Which events to follow. A stream of one job ends with the job."""

    job: Number | None = None
    conversation: str = Field(default="", max_length=200)
    after: str = Field(
        default="",
        pattern=r"^([0-9]{1,18}\.[0-9]{1,18})?$",
        description="The id of the last event seen, or 0.0 for all. When empty, all of a job, else new ones only. "
        "`Last-Event-ID` does the same.",
    )


async def follow(request: Request) -> Response:
    """Follow events as they happen (server-sent events).

    Each has an id to resume from (send it as Last-Event-ID, as browsers do by themselves) and an event as JSON.
    The stream of a job ends with an event called `end` that has the job's state.
    """
    platform, wanted = platform_of(request), queried(request, Wanted)
    cursor = _place(request.headers.get("last-event-id") or wanted.after)
    await platform.database.read(partial(_check, wanted=wanted))
    watched = Watched(wanted.job, wanted.conversation or None)
    platform.follower.check_room()
    if wanted.job is not None and cursor is None:
        cursor = Cursor()
    if request.method == "HEAD":
        return Response(media_type=Stream.media_type)
    return Stream(_told(platform, watched, cursor), request.app.state.watching, visitor_of(request).member_id)


def _place(given: str) -> Cursor | None:
    try:
        return Cursor.parse(given) if given else None
    except ValueError:
        raise Malformed("Last-Event-ID: is not the id of an event.") from None


def _check(connection: Connection, wanted: Wanted) -> None:
    if wanted.job is not None:
        find_job(connection, wanted.job)
    if wanted.conversation:
        query = select(conversations.c.id).where(conversations.c.id == wanted.conversation)
        if connection.execute(query).first() is None:
            raise NotFound(f"There is no conversation {wanted.conversation[:60]!r}.")


async def _told(platform: Platform, watched: Watched, cursor: Cursor | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    seen = cursor or Cursor()
    if end := await _end(platform, watched, seen):
        yield end
        return
    async for found in platform.follower.watch(watched, cursor, pulse=PULSE):
        for event in found:
            yield _line(event)
            seen = place_of(event)
        if end := await _end(platform, watched, seen):
            yield end
            return
        if not found:
            yield b": still here\n\n"


async def _end(platform: Platform, watched: Watched, seen: Cursor) -> bytes:
    """The last thing to say of a job that has ended and of which everything was seen; else nothing."""
    if watched.job_id is None:
        return b""
    state, last = await platform.database.read(partial(_last, job_id=watched.job_id))
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
    return f"id: {place_of(event)}\ndata: {json.dumps(event, default=str)}\n\n".encode()


class Stream(Response):
    """Server-sent events to one reader, who is cut off when it does not read."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], watching: Counter[str], member_id: str) -> None:
        if watching[member_id] >= MOST_EACH:
            raise TooBusy(f"You are watching {MOST_EACH} times already.", retry_after=30)
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._content = content
        self._watching = watching
        self._member_id = member_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the content ends, the reader leaves or time is up."""
        self._watching[self._member_id] += 1
        try:
            await self._stream(receive, send)
        finally:
            self._watching[self._member_id] -= 1

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        await asyncio.wait({sending, leaving}, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)
        await self._content.aclose()  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        with contextlib.suppress(FellBehind, TimeoutError):
            async for piece in self._content:
                async with asyncio.timeout(SEND_WITHIN):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
