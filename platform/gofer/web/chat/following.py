"""Following a conversation as it goes: changes of the log, and what runs say meanwhile, here or elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any

from sqlalchemy import Connection

from gofer.jobs.following import Wanted
from gofer.live import Piece, Watcher
from gofer.platform import Platform
from gofer.store.events import Cursor
from gofer.web.chat.timeline import Reader, Timeline
from gofer.web.pages.inert import inert

LOOK_ANYWAY = 15.0
"""Seconds after which a follower looks at the log although nobody woke it."""
BREATH = 0.05
"""Seconds in which pieces are gathered, so that a fast model or a chatty command makes few frames."""
MOST_OUTPUT = 16_000
"""Characters of one call's output in a frame: what is printed faster is shown when the call ends."""


async def follow(platform: Platform, conversation_id: str, cursor: Cursor) -> AsyncIterator[Any]:
    """Timelines of what changed after a place, and frames of what is being said; for ever."""
    state = ""
    with (
        platform.live.watching(conversation_id) as watcher,
        _woken_by_log(platform, conversation_id, watcher),
    ):
        outputs: list[dict[str, Any]] = []
        answered: set[int] = set()
        while True:
            news = await platform.database.read(
                partial(read_news, platform=platform, conversation_id=conversation_id, cursor=cursor)
            )
            if news.items or news.state != state:
                state = news.state
                yield news
            answered |= _answered(news)
            more, cursor = news.cursor != cursor, news.cursor
            for frame in outputs:
                yield frame
            outputs = []
            while not more:
                pieces = await watcher.wait(LOOK_ANYWAY)
                for frame in _texts(pieces, answered):
                    yield frame
                outputs += _outputs(pieces)
                if not pieces or not all(piece.is_delta for piece in pieces):
                    break
                for frame in outputs:
                    yield frame
                outputs = []
                await asyncio.sleep(BREATH)


@contextlib.contextmanager
def _woken_by_log(platform: Platform, conversation_id: str, watcher: Watcher) -> Iterator[None]:
    """Have the process's one reader of the log wake a watcher, wherever what happened was written."""

    async def wake() -> None:
        wanted = Wanted(conversation_id=conversation_id)
        async for _ in platform.follower.watch(wanted, None, pulse=LOOK_ANYWAY):
            watcher.wake()

    waking = asyncio.create_task(wake(), name="chat-follower")
    try:
        yield
    finally:
        waking.cancel()


def read_news(connection: Connection, platform: Platform, conversation_id: str, cursor: Cursor) -> Timeline:
    """What changed in a conversation."""
    return Reader(connection, platform.vault, platform.redactor, conversation_id).news(cursor)


def _answered(news: Timeline) -> set[int]:
    return {item["job"] for item in news.items if item["kind"] == "reply" and item["final"]}


def _texts(pieces: Iterable[Piece], answered: set[int]) -> Iterator[dict[str, Any]]:
    """What the model says, joined; and where it begins again. Words that come after their answer are late."""
    said: dict[str, Any] | None = None
    for piece in pieces:
        if piece.kind == "turn.started":
            answered.discard(piece.job_id)
        if piece.kind == "text.delta" and piece.job_id not in answered:
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
        {"type": "output", "item": f"call-{job_id}-{call_id}", "text": inert(text[-MOST_OUTPUT:])}
        for (job_id, call_id), text in found.items()
        if text
    ]
