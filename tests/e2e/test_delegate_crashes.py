"""Die at every point of delegating: tasks are made once, what they do is done once, and the run is answered once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from e2e.scenario import Scenario, prepared
from e2e.test_crash_points import _death, _each_mark_once
from gofer.store.tables import events, jobs, tasks
from support.patience import patiently

POINTS = ("run.delegated", "task.begun", "task.worked", "task.finishing", "task.finished", "task.finished:2")
QUICK = {("sqlite", "run.delegated"), ("postgresql", "task.finishing")}
CRASHES = [
    pytest.param(
        point,
        database,
        id=f"{database}-{point}",
        marks=() if (database, point) in QUICK else pytest.mark.slow,
    )
    for point in POINTS
    for database in ("sqlite", "postgresql")
]

MANY_ROOMS = 30
"""So many that their tasks take longer than it takes until a saturated agent is told of."""


def delegation(room: str, count: int = 2) -> str:
    """What the offline model is told, so that it delegates tasks that each leave a mark."""
    wanted = [
        {
            "kind": "execution",
            "title": f"task {number}",
            "instructions": f'$tool mark {{"line": "{room}-{number}"}}',
        }
        for number in range(1, count + 1)
    ]
    return f"$tool delegate {json.dumps({'tasks': wanted})}"


@pytest.mark.parametrize(("crash_at", "database_url"), CRASHES, indirect=["database_url"])
async def test_nothing_is_lost_or_doubled_by_dying_at(
    crash_at: str, database_url: str, data_dir: Path
) -> None:
    database_url = "" if database_url.startswith("sqlite") else database_url
    # One task at a time: a death that cut off another in the middle of its tool would leave that one's outcome unknown.
    async with prepared(
        data_dir, database_url, integration="hello", sandbox="off", worker_slots=1
    ) as scenario:
        rooms = ("kitchen", "garden")
        talking = [
            asyncio.create_task(scenario.say_in_turn(room, [delegation(room), "and you?"])) for room in rooms
        ]
        dying = scenario.start(crash_at=crash_at).wait_until_ready()
        await _death(dying, crash_at)
        living = scenario.start().wait_until_ready()
        try:
            async with patiently(30):
                await asyncio.gather(*talking)
            assert await scenario.settle(), await scenario.findings()
        finally:
            code = living.stop()
        assert code == 0
        assert not await scenario.findings()
        _each_mark_once(scenario)
        counted = select(tasks.c.state, func.count()).group_by(tasks.c.state)
        assert dict(await scenario.read(lambda c: [tuple(row) for row in c.execute(counted)])) == {"done": 4}
        made = select(func.count()).select_from(jobs).where(jobs.c.kind == "task")
        assert await scenario.read(lambda c: c.execute(made).scalar_one()) == 4


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
async def test_a_kill_in_saturation_loses_and_repeats_nothing_and_it_is_still_told(
    database_url: str, data_dir: Path
) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    async with prepared(data_dir, url, integration="hello", sandbox="off") as scenario:
        scenario.environment |= {
            "GOFER_WORKER_SLOTS": "1",
            "GOFER_AGENT_TASKS": "1",
            "GOFER_TASK_QUEUE": "200",
        }
        rooms = [f"room-{number}" for number in range(MANY_ROOMS)]
        dying = scenario.start().wait_until_ready()
        for room in rooms:
            await scenario.say(f"{room}-1", room, delegation(room, 4))
        async with patiently(60):
            while not (before := await told(scenario))[-1:] or not before[-1]["saturated"]:
                await asyncio.sleep(0.02)
        dying.kill()
        living = scenario.start().wait_until_ready()
        try:
            load = (await scenario.control("GET", "/agents/gofer/load")).json()
            assert load["accepted"] >= before[-1]["accepted"] > 0, "the count is kept"
            async with patiently(120):
                while (await told(scenario))[-1]["queued"] or (await told(scenario))[-1]["active"]:
                    await asyncio.sleep(0.1)
            assert await scenario.settle(), await scenario.findings()
            load = (await scenario.control("GET", "/agents/gofer/load")).json()
        finally:
            assert living.stop() == 0
        _each_mark_once(scenario)
        assert (load["accepted"], load["dropped"], load["queued"], load["active"]) == (
            4 * MANY_ROOMS,
            0,
            0,
            0,
        )
        assert not load["saturated"]


async def told(scenario: Scenario) -> list[dict[str, Any]]:
    """The load as it was told, in order."""
    query = select(events.c.data).where(events.c.kind == "worker.saturated").order_by(events.c.id)
    return await scenario.read(lambda c: [row.data for row in c.execute(query)])
