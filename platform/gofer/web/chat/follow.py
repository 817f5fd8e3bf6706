"""Following a conversation as it goes: changes of the log, and what runs say meanwhile, here or elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from gofer.app import Platform
from gofer.live import Fresh
from gofer.store.events import Cursor
from gofer.web.chat.timeline import Reader, Timeline
from gofer.web.dashboard.sanitize import inert

LOOK_ANYWAY = 15.0
"""Seconds after which a follower looks at the log although nobody woke it."""
BREATH = 0.05
"""Seconds in which words are gathered, so that a fast model or a chatty command makes few frames."""


async def follow(
    platform: Platform,
    conversation_id: str,
    cursor: Cursor,
    *,
    look_anyway: float = LOOK_ANYWAY,
    more: Callable[[Connection, Timeline], Any] | None = None,
) -> AsyncIterator[Any]:
    """Timelines of what changed after a place, and frames of what is being said; for ever.

    `more` is read with each Timeline, in the same transaction: many follow at once, and each read waits its turn.
    """
    state = ""

    def look(connection: Connection, after: Cursor) -> Timeline:
        news = read_news(connection, platform, conversation_id, after)
        if more is None or not (news.items or news.state != state):
            return news
        return replace(news, more=more(connection, news))

    with platform.live.watching(conversation_id) as watcher:
        # The process's one reader of the log wakes it, wherever what happened was written.
        async with platform.follower.waking(conversation_id, watcher.wake):
            while True:
                news = await platform.database.read(look, after=cursor)
                if news.items or news.state != state:
                    state = news.state
                    yield news
                for job_id in _spoken(news):
                    watcher.forget(job_id)
                again, cursor = news.cursor != cursor, news.cursor
                while not again:
                    for fresh in watcher.fresh(news.at_work.jobs):
                        if (frame := _frame(fresh)) is not None:
                            yield frame
                    again = await watcher.wait(look_anyway)
                    if not again:
                        await asyncio.sleep(BREATH)


def read_news(connection: Connection, platform: Platform, conversation_id: str, cursor: Cursor) -> Timeline:
    """What changed in a conversation."""
    return Reader(connection, platform.vault, platform.redactor, conversation_id).news(cursor)


def read_now(connection: Connection, platform: Platform, conversation_id: str) -> Timeline:
    """The position in a conversation, and what the agent is doing."""
    return Reader(connection, platform.vault, platform.redactor, conversation_id).now()


def _spoken(news: Timeline) -> set[int]:
    """The jobs of which something stands there now in place of what they were saying: a page wipes that."""
    return {item["job"] for item in news.items if item["kind"] in ("reply", "aside")}


def _frame(fresh: Fresh) -> dict[str, Any] | None:
    if not fresh.text and not fresh.whole:
        return None
    if fresh.call_id:
        place: dict[str, Any] = {"type": "output", "item": f"call-{fresh.job_id}-{fresh.call_id}"}
    else:
        place = {"type": "text", "job": fresh.job_id}
    return {**place, "text": inert(fresh.text), "whole": fresh.whole}
