"""Figures that are taken the same way on both databases, over an open instance."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from sqlalchemy import Connection

from benchmarks import ours
from benchmarks.measure import percentile
from benchmarks.report import Row
from gofer.app import Platform
from gofer.jobs import queue
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.queue import AGENT, Claim
from gofer.jobs.worker import Run
from gofer.runs.store_adapters import StoreJournal


async def hot_conversation(group: str, platform: Platform, depth: int, jobs: int) -> Row:
    """The drain of other conversations while thousands of jobs wait behind one that runs."""

    async def with_behind(waiting: int, prefix: str) -> float:
        hot = f"hot-{prefix}"
        over = asyncio.Event()

        async def hold(run: Run) -> None:
            if run.claim.lane.startswith("hot"):
                await over.wait()

        await platform.database.write(partial(ours.converse, vault=platform.vault, names=[hot]))
        await ours.pile(platform, hot, 1 + waiting)
        await ours.fill(platform, jobs, jobs // 10, prefix)
        try:
            return await ours.drain(platform, jobs, hold)
        finally:
            await platform.database.write(ours.clear)
            over.set()

    alone, beside = [], []
    for number in range(2):
        alone.append(await with_behind(0, f"a{number}-"))
        beside.append(await with_behind(depth, f"b{number}-"))
    name = f"drain beside a conversation {depth:,} deep"
    return Row(group, name, max(beside), "jobs/s", "the same without it", max(alone), at_least=0.9)


async def hand_over(group: str, platform: Platform, samples: int, start: float) -> Row:
    """From the end of a job to the start of the next one in its conversation."""
    ended: list[float] = []
    gaps: list[float] = []

    async def work(run: Run) -> Outcome:
        if ended:
            gaps.append((time.perf_counter() - ended[-1]) * 1000)
        await asyncio.sleep(0.005)
        ended.append(time.perf_counter())
        return Done()

    await ours.fill(platform, samples, 1, "same")
    async with ours.worker(platform, work) as working:
        while len(ended) < samples or working.running:
            await asyncio.sleep(0.005)
    return Row(group, "hand-over p50", percentile(gaps, 50), "ms", "start p50", start, at_most=2.0)


async def journal(group: str, platform: Platform, steps: int) -> list[Row]:
    """Appends to the journal of running jobs, words sealed and under the fence: alone, and sixteen runs at once."""
    names = [f"j{number}" for number in range(ours.SLOTS)]
    await platform.database.write(partial(ours.converse, vault=platform.vault, names=names))
    for name in names:
        await platform.database.write(partial(ours.one, conversation=name))
    limits = {AGENT: ours.SLOTS}
    claims = (await queue.claim(platform.database, owner=platform.owner, lease=600, limits=limits))[AGENT]
    taken = await _append(platform, claims[0], max(50, steps // 8))
    began = time.perf_counter()
    await asyncio.gather(*(_append(platform, claim, steps // len(claims)) for claim in claims))
    rate = steps // len(claims) * len(claims) / (time.perf_counter() - began)
    return [
        Row(group, "journal, 16 runs", rate, "steps/s", at_least=1000),
        Row(group, "journal, one run, p50", percentile(taken, 50), "ms", at_most=2),
    ]


async def _append(platform: Platform, claim: Claim, steps: int) -> list[float]:
    journal = StoreJournal(platform.database, platform.vault, claim)
    taken = []
    for number in range(steps):
        began = time.perf_counter()
        await journal.append("run.answered", {"text": ours.PAYLOAD, "step": number})
        taken.append((time.perf_counter() - began) * 1000)
    return taken


async def long_history(group: str, finished: int, jobs: int) -> Row:
    """The drain of a database that has finished many jobs, beside that of an empty one."""
    empty: list[float] = []
    full: list[float] = []
    async with ours.platform() as new, ours.platform() as old:
        await old.database.write(partial(_finish, jobs=finished))
        for number in range(2):
            for platform, rates in ((new, empty), (old, full)):
                await ours.fill(platform, jobs, jobs // 10, f"h{number}-")
                rates.append(await ours.drain(platform, jobs))
    name = f"drain after {finished:,} finished jobs"
    return Row(group, name, max(full), "jobs/s", "an empty database", max(empty), at_least=0.8)


def _finish(connection: Connection, jobs: int) -> None:
    """Rows as that many finished jobs leave them: the job, its attempt and two of its events."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})"
    at = "strftime('%s', 'now') - 86400 + i / 100.0"
    statements = (
        f"""INSERT INTO job (id, workspace_id, kind, pool, state, lane, priority, run_at, attempts, max_attempts,
            fence, cancel_requested, event_seq, covers_from, payload, reason, created_at, finished_at)
            {numbers} SELECT i, 'main', 'nothing', 'agent', 'done', 'old' || (i % 5000), 0, {at}, 1, 5, 1, 0, 3, 0,
            '{{"text": "' || hex(zeroblob(100)) || '"}}', '', {at}, {at} FROM n""",
        f"""INSERT INTO attempt (job_id, fence, number, owner, started_at, ended_at, outcome, reason, cost)
            {numbers} SELECT i, 1, 1, 'proc_old', {at}, {at}, 'done', '', 0 FROM n""",
        *(
            f"""INSERT INTO event (workspace_id, kind, version, job_id, seq, fence, data, tx, at)
            {numbers} SELECT 'main', '{kind}', 1, i, {seq}, 1, '{{"outcome": "done"}}', 0, {at} FROM n"""
            for seq, kind in ((2, "attempt.started"), (3, "attempt.finished"))
        ),
    )
    for statement in statements:
        connection.exec_driver_sql(statement)
