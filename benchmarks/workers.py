"""Chat answers beside ten runs that delegate eight tasks each, in one process: what that costs those who chat, and how
many tasks were worked on at once, by the log of attempts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import Connection, func, select

from benchmarks.report import Row
from benchmarks.scripted_model import scripted_model
from gofer.app import Platform, open_app
from gofer.settings import Settings
from gofer.store.tables import attempts, jobs, tasks
from gofer.web.app import public_app
from gofer.web.auth.members import first_owner
from gofer.web.auth.sessions import new_token
from gofer_standins.anthropic import Reply, call, calls, say
from gofer_standins.loopback import serve

GROUP = "workers"
RUNS, TASKS, SLOTS = 10, 8, 4
DELEGATE = "Please delegate."


async def main(quick: bool) -> list[Row]:
    """Chat alone, beside the workers, and alone again: what disturbs one disturbs the other."""
    count = 20 if quick else 60
    async with gofer() as (platform, client):
        await chat(platform, client, 5)
        alone = await chat(platform, client, count)
        for _ in range(RUNS):
            await say_to(client, DELEGATE)
        await asyncio.sleep(1)  # they are answers as well, until they wait for their tasks
        beside = await chat(platform, client, count)
        left = int(await platform.database.read(unfinished))
        while await platform.database.read(unfinished) or not await platform.database.read(made):
            await asyncio.sleep(0.1)
        alone += await chat(platform, client, count)
        done, most = await platform.database.read(finished), await platform.database.read(most_at_once)
    note = f"{left} tasks were left when the last of them was answered"
    return [
        Row(GROUP, "p95 of a chat answer beside workers", p95(beside), "ms", "without", p95(alone),
            at_most=1.5, note=note),
        Row(GROUP, "tasks worked on at once at most", most, "tasks", "configured", SLOTS, at_most=1.0),
        Row(GROUP, "tasks done", done, "tasks", "delegated", RUNS * TASKS, at_least=1.0),
    ]  # fmt: skip


def script(request: Mapping[str, Any]) -> Reply:
    """Workers take a while; whoever is asked to delegate does; everybody else answers at once."""
    if "You are a worker" in json.dumps(request["system"]):
        return calls(call("finish_task", outcome="done", summary="Done."), delay=0.15)
    last = request["messages"][-1]["content"]
    if DELEGATE in json.dumps(request["messages"]) and not any(b["type"] == "tool_result" for b in last):
        four = [{"kind": "research", "title": f"t{n}", "instructions": "Look."} for n in range(4)]
        return calls(call("delegate", tasks=four), call("delegate", tasks=four))
    return say("Good.")


@contextlib.asynccontextmanager
async def gofer() -> AsyncIterator[tuple[Platform, httpx2.AsyncClient]]:
    """A whole process with a scripted model."""
    async with scripted_model(__name__) as model:
        with tempfile.TemporaryDirectory() as folder:
            agents = Path(folder, "agents")
            agents.mkdir()
            # Without a cap, or runs would wait for money that others have set aside.
            (agents / "gofer.toml").write_text('name = "gofer"\n[limits]\nday_dollars = 0\n')
            settings = Settings(
                data_dir=Path(folder), sandbox="off", worker_slots=SLOTS, agent_tasks=SLOTS, task_queue=1000,
                **model,  # type: ignore[arg-type]
            )  # fmt: skip
            async with open_app(settings, roles=frozenset({"web", "worker"})) as platform:
                token = await platform.database.write(_token)
                async with serve(public_app(platform)) as own:
                    headers = {"authorization": f"Bearer {token}"}
                    async with httpx2.AsyncClient(base_url=f"{own}/api/v1", headers=headers) as client:
                        yield platform, client


def _token(connection: Connection) -> str:
    return new_token(connection, first_owner(connection).id, name="bench", scope="admin")[1]


async def say_to(client: httpx2.AsyncClient, text: str) -> str:
    said = await client.post("/messages", json={"text": text})
    said.raise_for_status()
    return str(said.json()["conversation_id"])


async def chat(platform: Platform, client: httpx2.AsyncClient, count: int) -> list[float]:
    """Milliseconds from a message to its answer in the ledger, one conversation after the other."""
    took = []
    for _ in range(count):
        conversation = await say_to(client, "Hello.")
        of_it = (jobs.c.conversation_id == conversation) & (jobs.c.kind == "answer")
        query = select(jobs.c.created_at, jobs.c.finished_at).where(of_it)
        deadline = time.monotonic() + 60
        row = await platform.database.read(partial(_one, query=query))
        while row.finished_at is None:
            if time.monotonic() > deadline:
                raise TimeoutError("no answer")
            await asyncio.sleep(0.01)
            row = await platform.database.read(partial(_one, query=query))
        took.append(1000 * (row.finished_at - row.created_at))
    return took


def _one(connection: Connection, query: Any) -> Any:
    return connection.execute(query).one()


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def unfinished(connection: Connection) -> int:
    return int(
        connection.execute(
            select(func.count()).select_from(tasks).where(tasks.c.finished_at.is_(None))
        ).scalar_one()
    )


def made(connection: Connection) -> bool:
    return int(connection.execute(select(func.count()).select_from(tasks)).scalar_one()) >= RUNS * TASKS


def finished(connection: Connection) -> int:
    return int(
        connection.execute(
            select(func.count()).select_from(tasks).where(tasks.c.state == "done")
        ).scalar_one()
    )


def most_at_once(connection: Connection) -> int:
    """The most tries at tasks that overlapped, from the log of attempts."""
    query = (
        select(attempts.c.started_at, attempts.c.ended_at)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(jobs.c.kind == "task")
    )
    moments = sorted(
        (at, change)
        for row in connection.execute(query)
        for at, change in ((row.started_at, 1), (row.ended_at, -1))
    )
    most = running = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most
