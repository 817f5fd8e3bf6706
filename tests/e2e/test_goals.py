"""Goals through kill -9 at every point of planning, dispatch, finish and report: each ends once, nothing is done twice,
and one report is sent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer.crash import EXIT_CODE
from gofer.store.tables import goals, jobs, replies, tasks
from support.patience import Deadline, eventually, patience

POINTS = [
    "goal.asked",
    *(f"goal.advanced:{number}" for number in (1, 2, 3, 4, 5)),
    "goal.reporting",
    *(f"task.begun:{number}" for number in (1, 2, 4)),
    *(f"task.worked:{number}" for number in (1, 2, 4)),
    *(f"task.finishing:{number}" for number in (1, 2)),
    *(f"task.finished:{number}" for number in (1, 3)),
    *(f"job.concluding:{number}" for number in (2, 3, 4, 5, 6, 7, 8)),
    *(f"job.concluded:{number}" for number in (2, 3, 4, 5, 6, 7, 8)),
    *(f"journal.appended:{number}" for number in (1, 3, 4, 5, 7, 9)),
]
QUICK = {("sqlite", "goal.advanced:2"), ("postgresql", "task.worked:2"), ("sqlite", "goal.reporting")}
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


@pytest.mark.parametrize(("crash_at", "database_url"), CRASHES, indirect=["database_url"])
async def test_a_goal_ends_once_and_reports_once_by_dying_at(
    crash_at: str, database_url: str, data_dir: Path
) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    async with prepared(data_dir, url) as scenario:
        dying = scenario.start(crash_at=crash_at).wait_until_ready()
        asking = asyncio.create_task(_ask(scenario, _commands(2)))
        await _death(dying, crash_at)
        living = scenario.start().wait_until_ready()
        goal_id = await asking
        await _over(scenario, goal_id, "done")
        assert await scenario.settle()
        assert living.stop() == 0
        await _check(scenario, goal_id, 2)


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
async def test_a_goal_of_twelve_tasks_through_thirty_random_kills(database_url: str, data_dir: Path) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    dice = random.Random(20)
    async with prepared(data_dir, url) as scenario:
        asking = asyncio.create_task(_ask(scenario, _commands(12)))
        for _ in range(30):
            gofer = scenario.start().wait_until_ready()
            await asyncio.sleep(dice.uniform(0, 0.25))
            gofer.kill()
        living = scenario.start().wait_until_ready()
        goal_id = await asking
        await _over(scenario, goal_id, "done")
        assert await scenario.settle()
        assert living.stop() == 0
        await _check(scenario, goal_id, 12)


def _commands(count: int) -> str:
    return "\n".join(f'$tool mark {{"line": "step-{number}"}}' for number in range(1, count + 1))


async def _ask(scenario: Scenario, text: str) -> str:
    """Ask until it is answered. Whose request was cut off looks first whether it was done, as the answer says."""
    transport = httpx2.AsyncHTTPTransport(uds=str(scenario.data_dir / "gofer.sock"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://gofer/api/v1", timeout=patience(30)
    ) as client:
        for number in itertools.count():
            headers = {"idempotency-key": f"goal-{number}"}
            ask = partial(client.post, "/goals", json={"text": text}, headers=headers)
            made = await _patiently(ask)
            if made.status_code == 201:
                return str(made.json()["id"])
            assert made.status_code == 409, made.text
            deadline = Deadline(5)
            while deadline.left > 0:
                found = (await _patiently(partial(client.get, "/goals"))).json()["goals"]
                if found:
                    return str(found[0]["id"])
                await asyncio.sleep(0.1)
    raise AssertionError


async def _patiently(asking: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The answer, as soon as somebody is there to give one."""
    while True:
        with contextlib.suppress(httpx2.TransportError):
            answer = await asking()
            if answer.status_code != 503:
                return answer
        await asyncio.sleep(0.05)


async def _over(scenario: Scenario, goal_id: str, state: str) -> None:
    query = select(goals.c.state, goals.c.reason).where(goals.c.id == goal_id)
    deadline = Deadline(60)
    while (found := await scenario.read(lambda c: tuple(c.execute(query).one())))[0] != state:
        assert deadline.left > 0, (found, await scenario.read(_story))
        await asyncio.sleep(0.05)


def _story(connection: Any) -> list[Any]:
    query = select(jobs.c.id, jobs.c.kind, jobs.c.state, jobs.c.reason, jobs.c.attempts, jobs.c.parent_id)
    made = select(tasks.c.number, tasks.c.kind, tasks.c.state, tasks.c.reason, tasks.c.job_id)
    return [*connection.execute(query).all(), *connection.execute(made).all()]


async def _check(scenario: Scenario, goal_id: str, count: int) -> None:
    """One goal, every task once, no effect twice, one report."""
    assert await scenario.read(lambda c: c.execute(select(func.count()).select_from(goals)).scalar_one()) == 1
    query = select(tasks.c.number, tasks.c.state).where(tasks.c.goal_id == goal_id, tasks.c.number > 0)
    states = await scenario.read(lambda c: c.execute(query.order_by(tasks.c.number)).all())
    assert [number for number, _ in states] == list(range(1, count + 1)), await scenario.read(_story)
    assert {state for _, state in states} == {"done"}
    marks = Path(scenario.environment["GOFER_TEST_MARKS"])
    lines = marks.read_text().split() if marks.exists() else []
    assert len(lines) == len(set(lines)), "an effect was done twice"
    job_id = select(goals.c.job_id).where(goals.c.id == goal_id).scalar_subquery()
    final = select(replies.c.part, replies.c.state).where(
        replies.c.job_id == job_id, replies.c.kind == "final"
    )
    assert [tuple(row) for row in await scenario.read(lambda c: c.execute(final).all())] == [(1, "sent")]


async def _death(gofer: Gofer, crash_at: str) -> None:
    try:
        await eventually(lambda: gofer.ended, within=20)
    except TimeoutError:
        gofer.kill()
        pytest.fail(f"{crash_at} is never reached")
    assert gofer.exit_code == EXIT_CODE, gofer.log.read_text()[-2000:]
