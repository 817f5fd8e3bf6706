"""Heartbeats with nothing to do: what thirty days of them cost, on both databases, with a long history."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from sqlalchemy import Connection, func, insert, select

from benchmarks import postgres
from benchmarks.report import Row
from gofer.app import open_app
from gofer.heartbeat.beats import BETWEEN_CHECKS, Beats
from gofer.heartbeat.findings import clock
from gofer.runs.agent_files import AgentFiles
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import events, heartbeat_findings, jobs, spends

GROUP = "heartbeat"
AGENTS, HISTORY = 3, 50_000
WRITTEN = (jobs, events, spends, heartbeat_findings)


async def main(quick: bool) -> list[Row]:
    """Run it."""
    days = 5 if quick else 30
    async with postgres.server() as server:
        urls = {"SQLite": "", "Postgres": await server.fresh()}
        return [row for name, url in urls.items() for row in await _idle(name, url, days)]


async def _idle(name: str, url: str, days: int) -> list[Row]:
    """The share of a core that the looks of some simulated days take, and what they write."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        for number in range(AGENTS):
            agent = data / "agents" / f"agent-{number}"
            agent.mkdir(parents=True)
            (agent / "agent.toml").write_text('[heartbeat]\nenabled = true\nhours = "00:00-24:00"\n')
            (agent / "HEARTBEAT.md").write_text("- 2099-12-24 09:00: Sing.\n")
        settings = Settings(data_dir=data, database_url=url, sandbox="off")
        async with open_app(settings, roles=frozenset({"web"})) as platform:
            await platform.database.write(_live_long)
            before = await platform.database.read(_written)
            start = await platform.database.read(clock)
            at = [start]
            files = AgentFiles.of(settings)
            beats = Beats(platform.database, files, platform.signals, "UTC", now=lambda _: at[0])
            begun = time.process_time()
            looks = 0
            for minute in range(0, days * 24 * 60, 30):
                at[0] = start + 60 * minute
                await beats.beat()
                looks += AGENTS
            spent = time.process_time() - begun
            between = await _between(beats)
            after = await platform.database.read(_written)
    note = f"{AGENTS} agents, {days} days, {HISTORY} old jobs, {looks} looks"
    share = 100 * (spent / (days * 86400) + between)
    return [
        Row(GROUP, f"idle heartbeats, {name}", share, "% of a core", at_most=1, note=note),
        Row(GROUP, f"a look that finds nothing, {name}", 1000 * spent / looks, "ms of a core"),
        Row(GROUP, f"rows written by idle heartbeats, {name}", after - before, "rows", at_most=0),
    ]


async def _between(beats: Beats, checks: int = 500) -> float:
    """The share of a core that the looks at the clock between two beats take."""
    begun = time.process_time()
    for _ in range(checks):
        await beats.beat()
    return (time.process_time() - begun) / (checks * BETWEEN_CHECKS)


def _written(connection: Connection) -> int:
    return sum(connection.execute(select(func.count()).select_from(each)).scalar_one() for each in WRITTEN)


def _live_long(connection: Connection) -> None:
    row = {
        "workspace_id": FIRST_WORKSPACE, "kind": "answer", "pool": "agent", "lane": "x", "priority": 0, "run_at": 0.0,
        "attempts": 1, "max_attempts": 5, "fence": 1, "cancel_requested": False, "event_seq": 1, "covers_from": 0,
        "payload": {}, "reason": "", "created_at": 0.0, "finished_at": 1.0,
    }  # fmt: skip
    for start in range(0, HISTORY, 1000):
        state = "dead" if start < HISTORY // 5 else "done"
        connection.execute(insert(jobs).values(state=state), [row] * 1000)
