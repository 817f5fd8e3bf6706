"""Goals: how soon the first task runs, and what ten goals at once do to people who only want an answer.

A scripted model plays planner, workers and whoever answers. It answers at once, or takes its time as models do when it
is asked to. Times are read off rows, so that nothing here adds to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from benchmarks.measure import percentile
from benchmarks.report import Row
from benchmarks.scripted_model import scripted_model
from gofer.app import Platform, open_app
from gofer.settings import Settings
from gofer.store.tables import goals, messages, replies, tasks
from gofer.web.auth import Visitor
from gofer.web.auth.members import first_owner
from gofer.web.chat.posts import ChatPost, take
from gofer.web.chat.rooms import find_room, open_room, web_connection
from gofer_standins.anthropic import Reply, call

GROUP = "goals"
GOALS, TASKS = 10, 8
THINKING = 0.05
"""Seconds between two events of a model's stream, of which an answer has half a dozen."""
SLOWLY = "slowly"
_ids = itertools.count(1)


def script(request: Mapping[str, Any]) -> Reply:
    """Plays everybody."""
    offered = {tool["name"] for tool in request.get("tools", ())}
    blocks: dict[str, Any] = {"type": "text", "text": "Hello."}
    if "submit_plan" in offered:
        steps = [{"title": "a step", "kind": "research", "instructions": "Do it.", "needs": []}] * TASKS
        blocks = call("submit_plan", reply="", tasks=steps, keep=[], remember=[])
    elif "finish_task" in offered:
        blocks = call("finish_task", outcome="done", summary="done")
    return Reply((blocks,), delay=THINKING if SLOWLY in json.dumps(request["messages"]) else 0)


async def main(quick: bool) -> list[Row]:
    """Answers alone and beside goals; then a goal's way to its first task, and an answer, both at once."""
    samples = 20 if quick else 60
    async with _gofer() as (platform, visitor):
        await _answers(platform, visitor, 5)  # everything is loaded once
        alone = await _answers(platform, visitor, samples, SLOWLY)
        beside: list[float] = []
        asked: list[str] = []
        while len(beside) < samples:  # only while there are goals
            asked += [await _say(platform, visitor, f"/goal do it {SLOWLY}") for _ in range(GOALS)]
            while await _under_way(platform):
                beside += await _answers(platform, visitor, 1, SLOWLY)
        done, side_by_side = await _ended(platform, asked)
        alone += await _answers(platform, visitor, samples, SLOWLY)
        first: list[float] = []
        at_once: list[float] = []
        for _ in range(samples):  # in turns, so that what disturbs one disturbs the other
            first.append(await _first_task(platform, visitor))
            at_once += await _answers(platform, visitor, 1)
    slots = platform.settings.worker_slots
    quickest, ordinary = percentile(alone, 95), percentile(at_once, 50)
    return [
        Row(GROUP, f"goals of {TASKS} tasks done, {GOALS} at once", done, "goals", "asked for", len(asked), at_least=1),
        Row(GROUP, "tasks at any instant", side_by_side, "tasks", at_most=slots, note=f"{slots} slots"),
        Row(GROUP, "an answer beside them, p95", percentile(beside, 95), "ms", "without them", quickest, at_most=1.5),
        Row(
            GROUP, "from /goal to its first task, p50", percentile(first, 50), "ms", "an answer", ordinary, at_most=4
        ),
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _gofer() -> AsyncIterator[tuple[Platform, Visitor]]:
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            model = await stack.enter_async_context(scripted_model(__name__))
            settings = Settings(data_dir=Path(folder), sandbox="off", max_goals=1000, **model)  # type: ignore[arg-type]
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


async def _answers(platform: Platform, visitor: Visitor, count: int, how: str = "") -> list[float]:
    """Milliseconds from a message to its answer, one after the other."""
    return [await _answer(platform, await _say(platform, visitor, f"hello {how}")) for _ in range(count)]


async def _under_way(platform: Platform) -> bool:
    """Whether a goal is."""
    query = select(goals.c.id).where(goals.c.finished_at.is_(None)).limit(1)
    return await platform.database.read(lambda c: c.execute(query).first() is not None)


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
    steps = select(tasks.c.started_at, tasks.c.finished_at).where(tasks.c.number > 0)
    spans = connection.execute(steps).all()
    marks = [(start, 1) for start, _ in spans if start] + [(end, -1) for start, end in spans if start and end]
    most = running = 0
    for _, change in sorted(marks):
        running += change
        most = max(most, running)
    return most
