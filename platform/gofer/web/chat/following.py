"""Following a conversation as it goes: changes of the log, and what runs in this process say meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, select, tuple_

from gofer.jobs.signals import EVENTS
from gofer.live import Piece
from gofer.platform import Platform
from gofer.store.events import Cursor
from gofer.store.tables import events
from gofer.web.chat.timeline import AT_ONCE, Reader, Timeline, settled
from gofer.web.pages.inert import inert

log = structlog.get_logger()

LOOK_ANYWAY = 15.0
"""Seconds after which a follower looks at the log although nobody woke it."""
BREATH = 0.03
"""Seconds in which pieces are gathered, so that a fast model makes few frames."""


class Tail:
    """Reads the end of the log once for all who follow in this process; nobody follows, nothing is read."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._followers = 0
        self._reading: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have it read for as long as the block lasts."""
        self._followers += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="chat-tail")
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._reading is not None:
                self._reading.cancel()
                self._reading = None

    async def _read(self) -> None:
        platform = self._platform
        woken = platform.signals.subscribe(EVENTS)
        cursor: Cursor | None = None
        try:
            while True:
                try:
                    began = cursor is not None
                    cursor, changed = await platform.database.read(partial(_changed, cursor=cursor))
                    # What happened before the first look was seen by nobody.
                    platform.live.wake(changed if began else None)
                except Exception as error:  # noqa: BLE001 - the database may be away; followers look by themselves
                    log.warning("chat.tail_interrupted", error=str(error))
                await asyncio.sleep(BREATH)
                await woken.wait(platform.settings.poll_interval)
        finally:
            platform.signals.unsubscribe(EVENTS, woken)


def _changed(connection: Connection, cursor: Cursor | None) -> tuple[Cursor, set[str]]:
    """The conversations in which something happened after a place, and the place after that."""
    query = select(events.c.tx, events.c.id, events.c.conversation_id).where(settled(connection))
    if cursor is None:
        row = connection.execute(query.order_by(events.c.tx.desc(), events.c.id.desc()).limit(1)).first()
        return (Cursor() if row is None else Cursor(row.tx, row.id)), set()
    after = tuple_(events.c.tx, events.c.id) > tuple_(cursor.tx, cursor.id)
    rows = connection.execute(query.where(after).order_by(events.c.tx, events.c.id).limit(AT_ONCE)).all()
    if not rows:
        return cursor, set()
    return Cursor(rows[-1].tx, rows[-1].id), {row.conversation_id for row in rows if row.conversation_id}


async def follow(platform: Platform, tail: Tail, conversation_id: str, cursor: Cursor) -> AsyncIterator[Any]:
    """Timelines of what changed after a place, and frames of what is being said; for ever."""
    state = ""
    with platform.live.watching(conversation_id) as watcher, tail.reading():
        outputs: list[dict[str, Any]] = []
        while True:
            news = await platform.database.read(
                partial(read_news, platform=platform, conversation_id=conversation_id, cursor=cursor)
            )
            if news.items or news.state != state:
                state = news.state
                yield news
            more, cursor = news.cursor != cursor, news.cursor
            for frame in outputs:
                yield frame
            outputs = []
            while not more:
                pieces = await watcher.wait(LOOK_ANYWAY)
                for frame in _texts(pieces):
                    yield frame
                outputs += _outputs(pieces)
                if not pieces or not all(piece.is_delta for piece in pieces):
                    break
                for frame in outputs:
                    yield frame
                outputs = []
                await asyncio.sleep(BREATH)


def read_news(connection: Connection, platform: Platform, conversation_id: str, cursor: Cursor) -> Timeline:
    """What changed in a conversation."""
    return Reader(connection, platform.vault, platform.redactor, conversation_id).news(cursor)


def _texts(pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
    """What the model says, joined; and where it begins again."""
    said: dict[str, Any] | None = None
    for piece in pieces:
        if piece.kind == "text.delta":
            if said is None:
                said = {"type": "text", "job": piece.job_id, "text": ""}
            said["text"] += inert(piece.data["text"])
        elif piece.kind in ("turn.started", "turn.failed"):
            if said is not None:
                yield said
            said = None
            yield {"type": "again", "job": piece.job_id}
    if said is not None and said["text"]:
        yield said


def _outputs(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """What tools print, joined by call."""
    found: dict[tuple[int, str], str] = {}
    for piece in pieces:
        if piece.kind == "tool.delta":
            place = (piece.job_id, str(piece.data["call_id"]))
            found[place] = found.get(place, "") + piece.data["text"]
    return [
        {"type": "output", "item": f"call-{job_id}-{call_id}", "text": inert(text)}
        for (job_id, call_id), text in found.items()
        if text
    ]
