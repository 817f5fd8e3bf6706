"""The engine on SQLite: draining, starting, a deep conversation, handing over, the journal, a million finished jobs."""

from __future__ import annotations

import asyncio
import tempfile

from benchmarks import figures, ours, sqlite_floor
from benchmarks.measure import Measured, Rounds
from benchmarks.peers import DBOS, HUEY
from benchmarks.report import Row

GROUP = "engine_sqlite"


async def main(quick: bool) -> list[Row]:
    """Run them."""
    jobs, samples, rounds = (1000, 60, 1) if quick else (4000, 200, 3)
    found = await _contend(jobs, samples, rounds)
    rows = _rows(found)
    async with ours.platform() as platform:
        rows += [await figures.hot_conversation(GROUP, platform, 2000 if quick else 20_000, jobs // 2)]
        rows += [await figures.hand_over(GROUP, platform, samples // 2, found.start("Gofer", 50))]
        rows += await figures.journal(GROUP, platform, jobs // 2)
    rows += [await figures.long_history(GROUP, 50_000 if quick else 1_000_000, jobs)]
    return rows


async def _contend(jobs: int, samples: int, rounds: int) -> Rounds:
    found = Rounds()
    for _ in range(rounds):
        raw = await asyncio.to_thread(sqlite_floor.drain, jobs // 2)
        found.add("floor", Measured(raw, await sqlite_floor.starts(samples)))
        found.add("Gofer", await ours.measure("", jobs=jobs, samples=samples))
        with tempfile.TemporaryDirectory() as folder:
            found.add("Huey", await HUEY.measure(f"{folder}/huey.db", jobs=jobs // 2, samples=samples // 3))
            file = f"sqlite:///{folder}/dbos.db"
            found.add("DBOS", await DBOS.measure(file, jobs=jobs // 8, samples=samples // 3))
    return found


def _rows(found: Rounds) -> list[Row]:
    targets = {"floor": ("raw sqlite3, a commit each", 2.0), "Huey": ("Huey", 1.2), "DBOS": ("DBOS", 15.0)}
    rows = [
        Row(
            GROUP,
            "drain, 16 slots",
            found.drain("Gofer"),
            "jobs/s",
            against,
            found.drain(name),
            at_least=least,
        )
        for name, (against, least) in targets.items()
        if name in found.drains
    ]
    for hundredths, most in ((50, 2.0), (99, 5.0)):
        rows.append(
            Row(
                GROUP,
                f"start p{hundredths}",
                found.start("Gofer", hundredths),
                "ms",
                "raw sqlite3 and an event",
                found.start("floor", hundredths),
                at_most=most,
            )
        )
    rows += [
        Row(GROUP, "start p50", found.start("Gofer", 50), "ms", name, found.start(name, 50), at_most=1.0)
        for name in ("Huey", "DBOS")
        if name in found.starts
    ]
    return rows
