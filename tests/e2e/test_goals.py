"""Goals through kill -9 at every point of planning, dispatch, finish and report: each ends once, nothing is done twice,
and one report is sent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer.crash import EXIT_CODE
from gofer.goals.driver import AGAIN
from gofer.goals.records import OVER
from gofer.store.tables import goals, jobs, replies, tasks
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from support.both_databases import on_both_by_turns
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
        marks=() if (database, point) in QUICK else pytest.mark.slow if tried else pytest.mark.chaos,
    )
    for point, database, tried in on_both_by_turns(POINTS)
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
        state = await _over(scenario, goal_id)
        assert await scenario.settle()
        assert living.stop() == 0
        states = await _check(scenario, goal_id)
        # The tool is cut off between its effect and its result by these; nobody may say then that it was done.
        unknown = crash_at in ("journal.appended:7", "journal.appended:9") and "failed" in states
        assert (state, states) == (("failed", states) if unknown else ("done", ["done", "done"]))


class Cast:
    """A model that plans twelve steps, has each leave a mark, and looks before it repeats what was cut off."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        offered = {tool["name"] for tool in request.get("tools", ())}
        words = json.dumps(request["messages"])
        if "submit_plan" in offered:
            return self._plan(words)
        if "finish_task" not in offered:
            return say("All marks are there.")
        (name,) = set(re.findall(r"<(step-[0-9]+)>", words))
        if '"tool_result"' in words:
            outcome = "failed" if "Outcome unknown" in words else "done"
            return calls(call("finish_task", outcome=outcome, summary=f"{name} is {outcome}"))
        if "Look whether" in words and name in self.marks.read_text().split():
            return calls(call("finish_task", outcome="done", summary=f"{name} was there"))
        return calls(call("mark", line=name))

    def _plan(self, words: str) -> Reply:
        failed = re.findall(r"(step-[0-9]+) is failed", words)
        waiting = [int(number) for number in re.findall(r"([0-9]+)\\. \\[queued\\]", words)]
        wanted = [f"Look whether <{failed[-1]}> was done." if failed else ""]
        if not failed:
            wanted = [f"Do <step-{number}>." for number in range(1, 13)]
        steps = [{"title": text, "kind": "execution", "instructions": text, "needs": []} for text in wanted]
        return calls(call("submit_plan", reply="On it.", tasks=steps, keep=waiting, without=[], remember=[]))


@pytest.mark.parametrize(
    ("database_url", "kills"),
    [
        pytest.param("sqlite", 30, marks=pytest.mark.slow(long=True)),
        pytest.param("postgresql", 10, marks=pytest.mark.slow(long=True)),
        pytest.param("postgresql", 30, marks=pytest.mark.chaos),
    ],
    indirect=["database_url"],
)
async def test_a_goal_of_twelve_tasks_through_random_kills(
    database_url: str, data_dir: Path, kills: int
) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    dice = random.Random(20)
    model = Anthropic(Cast(data_dir.parent / "marks"))
    async with (
        loopback.serve(model.app) as address,
        prepared(data_dir, url, anthropic_key=model.key, anthropic_base_url=address) as scenario,
    ):
        asking = asyncio.create_task(_ask(scenario, "Leave twelve marks."))
        for _ in range(kills):
            gofer = scenario.start().wait_until_ready()
            await asyncio.sleep(dice.uniform(0, 0.5))
            gofer.kill()
        living = scenario.start().wait_until_ready()
        goal_id = await asking
        answering = asyncio.create_task(_try_again(scenario))
        assert await _over(scenario, goal_id) == "done"
        answering.cancel()
        assert await scenario.settle()
        assert living.stop() == 0
        states = await _check(scenario, goal_id)
        assert states.count("done") == 12
        marks = Path(scenario.environment["GOFER_TEST_MARKS"]).read_text().split()
        assert sorted(marks) == sorted(f"step-{number}" for number in range(1, 13)), "each effect once"
    assert model.refused == []


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


async def _try_again(scenario: Scenario) -> None:
    """Say yes whenever a goal asks whether it may change its plan once more: kills may cost it more than five."""
    transport = httpx2.AsyncHTTPTransport(uds=str(scenario.data_dir / "gofer.sock"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://gofer/api/v1", timeout=patience(30)
    ) as client:
        while True:
            for asked in (await client.get("/questions")).json()["questions"]:
                await client.post(f"/questions/{asked['id']}/answer", json={"text": AGAIN})
            await asyncio.sleep(0.2)


async def _over(scenario: Scenario, goal_id: str) -> str:
    """The state in which a goal ended."""
    query = select(goals.c.state).where(goals.c.id == goal_id)

    async def end() -> str:
        state = await scenario.read(lambda c: str(c.execute(query).scalar_one()))
        return state if state in OVER else ""

    try:
        return str(await eventually(end, 60))
    except TimeoutError:
        raise AssertionError(await scenario.read(_story)) from None


def _story(connection: Any) -> list[Any]:
    query = select(jobs.c.id, jobs.c.kind, jobs.c.state, jobs.c.reason, jobs.c.attempts, jobs.c.parent_id)
    made = select(tasks.c.number, tasks.c.kind, tasks.c.state, tasks.c.reason, tasks.c.job_id)
    return [*connection.execute(query).all(), *connection.execute(made).all()]


async def _check(scenario: Scenario, goal_id: str) -> list[str]:
    """One goal, every task once, no effect twice, one report. Returns the states of the tasks."""
    assert await scenario.read(lambda c: c.execute(select(func.count()).select_from(goals)).scalar_one()) == 1
    query = select(tasks.c.number, tasks.c.state).where(tasks.c.goal_id == goal_id, tasks.c.number > 0)
    states = await scenario.read(lambda c: c.execute(query.order_by(tasks.c.number)).all())
    assert [number for number, _ in states] == list(range(1, len(states) + 1)), await scenario.read(_story)
    marks = Path(scenario.environment["GOFER_TEST_MARKS"])
    lines = marks.read_text().split() if marks.exists() else []
    assert len(lines) == len(set(lines)), "an effect was done twice"
    job_id = select(goals.c.job_id).where(goals.c.id == goal_id).scalar_subquery()
    final = select(replies.c.part, replies.c.state).where(
        replies.c.job_id == job_id, replies.c.kind == "final"
    )
    assert [tuple(row) for row in await scenario.read(lambda c: c.execute(final).all())] == [(1, "sent")]
    return [state for _, state in states]


async def _death(gofer: Gofer, crash_at: str) -> None:
    try:
        await eventually(lambda: gofer.ended, within=20)
    except TimeoutError:
        gofer.kill()
        pytest.fail(f"{crash_at} is never reached")
    assert gofer.exit_code == EXIT_CODE, gofer.log.read_text()[-2000:]
