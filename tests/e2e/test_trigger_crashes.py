"""Die at every hop of a Trigger: each hop is delivered once, the question is answered once, and nothing is stranded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from e2e.scenario import Scenario, prepared
from e2e.test_crash_points import _death
from gofer.store.tables import hops, jobs
from gofer.web.unix_socket import AS_AGENT
from support.patience import patience, patiently

FILE = 'runtime = "tmux"\n[external]\nfallback = "helper"\nack_within = 20\n'
HEARTBEAT = {
    "agent": "gofer",
    "kind": "tmux",
    "host": "desk",
    "state": "live",
    "session": "s",
    "can_resume": True,
    "can_spawn": True,
}
POINTS = (
    *(f"trigger.looking:{n}" for n in (1, 2, 3, 4, 5)),
    *(f"trigger.looked:{n}" for n in (1, 2, 3, 4, 5)),
    *("job.concluding:3", "job.concluded:4", "run.admitted:2"),
)
ANSWERS = {
    "answered": ("post.saying", "outbox.begun", "outbox.placed_outside"),
    "handed over": ("run.answered",),
}
QUICK = {
    ("sqlite", "answered", "trigger.looked:2"),
    ("postgresql", "answered", "post.saying"),
    ("postgresql", "handed over", "trigger.looked:5"),
}
DATABASES = ("sqlite", "postgresql")
BY_TURNS = {
    (DATABASES[(number + place) % 2], ending, point)
    for place, ending in enumerate(ANSWERS)
    for number, point in enumerate(POINTS)
}
"""Until somebody answers, both endings are one flow: each ending dies at a point on one database, together on both."""
OWN = {(database, ending, point) for database in DATABASES for ending in ANSWERS for point in ANSWERS[ending]}
CRASHES = [
    pytest.param(
        ending,
        point,
        database,
        id=f"{database}-{ending}-{point}",
        marks=()
        if (crash := (database, ending, point)) in QUICK
        else pytest.mark.slow
        if crash in BY_TURNS | OWN
        else pytest.mark.chaos,
    )
    for ending in ANSWERS
    for point in (*POINTS, *ANSWERS[ending])
    for database in DATABASES
]


class Host:
    """Carries out orders over the socket of whichever process runs: only a spawned session answers, if any does."""

    def __init__(self, scenario: Scenario, *, answers: bool) -> None:
        self.scenario = scenario
        self.answers = answers
        self.delivered: Counter[str] = Counter()
        self.fresh = True
        """What was handed out may have been lost on its way."""

    async def ask(self, method: str, path: str, body: Any = None, agent: str = "") -> httpx2.Response:
        transport = httpx2.AsyncHTTPTransport(uds=str(self.scenario.data_dir / "gofer.sock"))
        headers = {AS_AGENT: agent} if agent else {}
        async with httpx2.AsyncClient(transport=transport, timeout=patience(30), headers=headers) as client:
            return await client.request(method, f"http://gofer/api/v1{path}", json=body)

    async def work(self) -> None:
        while True:
            try:
                await self._once()
            except httpx2.TransportError:
                self.fresh = True
            await asyncio.sleep(0.05)

    async def _once(self) -> None:
        made = {"name": "pane", "agent": "gofer", "kind": "tmux"}
        if (await self.ask("PUT", "/runtimes/pane", HEARTBEAT)).status_code == 404:
            await self.ask("POST", "/runtimes", made)
        found = await self.ask("GET", f"/runtimes/orders?host=desk&wait=1&fresh={self.fresh}")
        self.fresh = False
        for order in found.json().get("orders", ()) if found.is_success else ():
            self.delivered[order["id"]] += 1
            await self._carry_out(order)

    async def _carry_out(self, order: dict[str, Any]) -> None:
        """Report and answer until somebody hears it, as a host and an agent do."""
        if order["action"] == "spawn" and self.answers:
            said = {"text": "Here I am.", "trigger": order["trigger"], "hop": order["hop"]}
            await self._until_heard(f"/conversations/{order['conversation']}/messages", said, "gofer")
            return
        told = {"status": "failed", "reason": "runtime.gone"}
        await self._until_heard(f"/runtimes/orders/{order['id']}", told)

    async def _until_heard(self, path: str, body: Any, agent: str = "") -> None:
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if (await self.ask("POST", path, body, agent)).status_code < 500:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("ending", "crash_at", "database_url"), CRASHES, indirect=["database_url"])
async def test_each_hop_is_delivered_once_and_the_question_answered_once_by_dying_at(
    ending: str, crash_at: str, database_url: str, data_dir: Path
) -> None:
    database_url = "" if database_url.startswith("sqlite") else database_url
    (data_dir / "agents").mkdir(parents=True, exist_ok=True)
    (data_dir / "agents" / "gofer.toml").write_text(FILE)
    (data_dir / "agents" / "helper.toml").write_text('model = "offline/echo"\n')
    async with prepared(data_dir, database_url, integration="hello", runtime_heartbeat=30) as scenario:
        host = Host(scenario, answers=ending == "answered")
        dying = scenario.start(crash_at=crash_at).wait_until_ready()
        working = asyncio.create_task(host.work())
        try:
            async with patiently(15):
                while not (await _registered(host)):
                    await asyncio.sleep(0.02)
            talking = asyncio.create_task(scenario.say("kitchen-0", "kitchen", "who is there?"))
            await _death(dying, crash_at)
            living = scenario.start().wait_until_ready()
            async with patiently(40):
                await talking
                while not scenario.shown():
                    await asyncio.sleep(0.05)
            assert await scenario.settle()
        finally:
            working.cancel()
        assert living.stop() == 0
        assert len(scenario.shown()) == 1
        assert max(host.delivered.values()) == 1, host.delivered
        rows = await scenario.read(lambda c: c.execute(select(hops).order_by(hops.c.number)).all())
        actions = ["live", "resume", "resume", "spawn"]
        assert [row.action for row in rows] == actions + ([] if host.answers else ["fallback"])
        assert rows[-1].state == ("answered" if host.answers else "handed_over")
        states = await scenario.read(lambda c: c.execute(select(jobs.c.state)).scalars().all())
        assert set(states) == {"done"}


ROOMS, KILLS = 6, 6


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
async def test_workers_that_are_killed_again_and_again_answer_each_question_once(
    database_url: str, data_dir: Path
) -> None:
    """On Postgres two workers at once, each killed in turn; on SQLite the one process that there can be."""
    database_url = "" if database_url.startswith("sqlite") else database_url
    roles = [("web",), ("worker",), ("worker",)] if database_url else [("web", "worker")]
    (data_dir / "agents").mkdir(parents=True, exist_ok=True)
    (data_dir / "agents" / "gofer.toml").write_text(FILE)
    (data_dir / "agents" / "helper.toml").write_text('model = "offline/echo"\n')
    async with prepared(data_dir, database_url, integration="hello", runtime_heartbeat=30) as scenario:
        host = Host(scenario, answers=True)
        processes = [scenario.start(*each) for each in roles]
        processes[0].wait_until_ready()
        working = asyncio.create_task(host.work())
        try:
            async with patiently(15):
                while not (await _registered(host)):
                    await asyncio.sleep(0.02)
            rooms = [f"room-{number}" for number in range(ROOMS)]
            talking = [
                asyncio.create_task(scenario.say(f"{room}-0", room, "who is there?")) for room in rooms
            ]
            for number in range(KILLS):
                await asyncio.sleep(0.4)
                which = 1 + number % 2 if database_url else 0
                processes[which].kill()
                processes[which] = scenario.start(*roles[which])
            async with patiently(90):
                await asyncio.gather(*talking)
                while len(scenario.shown()) < ROOMS:
                    await asyncio.sleep(0.05)
            assert await scenario.settle()
        finally:
            working.cancel()
        assert sorted(reply.room for reply in scenario.shown()) == rooms
        assert max(host.delivered.values()) == 1, host.delivered
        rows = await scenario.read(
            lambda c: c.execute(select(hops).order_by(hops.c.job_id, hops.c.number)).all()
        )
        trails: dict[int, list[str]] = {}
        for row in rows:
            trails.setdefault(row.job_id, []).append(row.action)
        assert list(trails.values()) == [["live", "resume", "resume", "spawn"]] * ROOMS
        states = await scenario.read(lambda c: c.execute(select(jobs.c.state)).scalars().all())
        assert set(states) == {"done"}


async def _registered(host: Host) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        found = await host.ask("GET", "/runtimes/pane")
        return found.is_success and found.json()["state"] == "live"
    return False
