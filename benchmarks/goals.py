"""Goals: how soon the first task runs, and what ten goals at once do to people who only want an answer.

A scripted model plays planner, workers and whoever answers. It takes its time as models do, or answers at once. Times
are read off rows, so that nothing here adds to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from benchmarks.measure import percentile
from benchmarks.report import Row
from gofer.app import Platform, open_app
from gofer.settings import Settings
from gofer.store.tables import goals, messages, replies, tasks
from gofer.web.auth import Visitor
from gofer.web.auth.members import first_owner
from gofer.web.chat.posts import ChatPost, take
from gofer.web.chat.rooms import find_room, open_room, web_connection
from gofer_standins.anthropic import Anthropic, Reply, call
from gofer_standins.loopback import serve

GROUP = "goals"
GOALS, TASKS = 10, 8
THINKING = 0.05
"""Seconds between two events of a model's stream, of which an answer has half a dozen."""
_ids = itertools.count(1)


class Cast:
    """Plays everybody; `delay` is what it takes between two events of a stream."""

    delay = 0.0

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        offered = {tool["name"] for tool in request.get("tools", ())}
        blocks: dict[str, Any] = {"type": "text", "text": "Hello."}
        if "submit_plan" in offered:
            steps = [{"title": "a step", "kind": "research", "instructions": "Do it.", "needs": []}] * TASKS
            blocks = call("submit_plan", reply="", tasks=steps, keep=[], remember=[])
        elif "finish_task" in offered:
            blocks = call("finish_task", outcome="done", summary="done")
        return Reply((blocks,), delay=self.delay)


async def main(quick: bool) -> list[Row]:
    """Answers alone and beside goals; then a goal's way to its first task, and an answer, both at once."""
    samples = 20 if quick else 60
    cast = Cast()
    async with _gofer(cast) as (platform, visitor):
        await _answers(platform, visitor, 5)  # everything is loaded once
        cast.delay = THINKING
        alone = await _answers(platform, visitor, samples)
        asked = [await _say(platform, visitor, "/goal do it") for _ in range(GOALS)]
        beside = await _answers(platform, visitor, samples)
        done, side_by_side = await _ended(platform, asked)
        alone += await _answers(platform, visitor, samples)
        cast.delay = 0
        first: list[float] = []
        at_once: list[float] = []
        for _ in range(samples):  # in turns, so that what disturbs one disturbs the other
            first.append(await _first_task(platform, visitor))
            at_once += await _answers(platform, visitor, 1)
    slots = platform.settings.worker_slots
    quickest, ordinary = percentile(alone, 95), percentile(at_once, 50)
    return [
        Row(GROUP, f"goals of {TASKS} tasks done, of {GOALS} at once", done, "goals", at_least=GOALS),
        Row(GROUP, "tasks at any instant", side_by_side, "tasks", at_most=slots, note=f"{slots} slots"),
        Row(GROUP, "an answer beside them, p95", percentile(beside, 95), "ms", "without them", quickest, at_most=1.5),
        Row(
            GROUP, "from /goal to its first task, p50", percentile(first, 50), "ms", "an answer", ordinary, at_most=4
        ),
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _gofer(cast: Cast) -> AsyncIterator[tuple[Platform, Visitor]]:
    model = Anthropic(cast)
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            url = await stack.enter_async_context(serve(model.app))
            settings = Settings(
                data_dir=Path(folder),
                sandbox="off",
                anthropic_key=model.key,
                anthropic_base_url=url,
                max_goals=1000,
            )
            platform = await stack.enter_async_context(open_app(settings, roles=frozenset({"worker"})))
            owner = await platform.database.write(first_owner)
            yield platform, Visitor(owner.id, owner.name, "owner", "socket")


async def _say(platform: Platform, visitor: Visitor, text: str) -> str:
    """Say something in a conversation of its own; returns which."""
    connection = await web_connection(platform)
    opened = partial(open_room, connection_id=connection.account.id, member_id=visitor.member_id)
    where = await platform.database.write(partial(opened, vault=platform.vault))
    room = await platform.database.read(
        partial(find_room, conversation_id=where, member_id=visitor.member_id)
    )
    await take(platform, visitor, room, ChatPost(id=f"message-{next(_ids):08}", text=text))
    return where


async def _answers(platform: Platform, visitor: Visitor, count: int) -> list[float]:
    """Milliseconds from a message to its answer, one after the other."""
    return [await _answer(platform, await _say(platform, visitor, "hello")) for _ in range(count)]


async def _answer(platform: Platform, where: str) -> float:
    said = select(func.min(messages.c.created_at)).where(messages.c.conversation_id == where)
    query = select(func.min(replies.c.created_at) - said.scalar_subquery())
    return await _until(platform, query.where(replies.c.conversation_id == where))


async def _first_task(platform: Platform, visitor: Visitor) -> float:
    """Milliseconds from a message that asks for a goal to its first task at work."""
    where = await _say(platform, visitor, "/goal do it")
    said = select(func.min(messages.c.created_at)).where(messages.c.conversation_id == where)
    begun = select(func.min(tasks.c.started_at) - said.scalar_subquery())
    took = await _until(platform, begun.where(tasks.c.conversation_id == where, tasks.c.number == 1))
    await _ended(platform, [where])
    return took


async def _until(platform: Platform, query: Any) -> float:
    """A span as soon as it is there, in milliseconds."""
    while (found := await platform.database.read(lambda c: c.execute(query).scalar())) is None:
        await asyncio.sleep(0.005)
    return float(found) * 1000


async def _ended(platform: Platform, conversations: Sequence[str]) -> tuple[int, int]:
    """How many goals of these conversations are done, once all have ended, and how many tasks ran at once."""
    here = goals.c.conversation_id.in_(conversations)
    over = select(func.count()).where(here, goals.c.finished_at.is_not(None))
    while (await platform.database.read(lambda c: c.execute(over).scalar_one())) < len(conversations):
        await asyncio.sleep(0.02)
    done = select(func.count()).where(here, goals.c.state == "done")
    count = await platform.database.read(lambda c: c.execute(done).scalar_one())
    return int(count), await platform.database.read(_side_by_side)


def _side_by_side(connection: Connection) -> int:
    """The most tasks that were at work at any instant."""
    spans = connection.execute(select(tasks.c.started_at, tasks.c.finished_at)).all()
    marks = [(start, 1) for start, _ in spans if start] + [(end, -1) for start, end in spans if start and end]
    most = running = 0
    for _, change in sorted(marks):
        running += change
        most = max(most, running)
    return most
