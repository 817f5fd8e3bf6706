"""Service levels: how long people wait, what waits, what fails, and what heartbeats cost.

Everything is computed from rows, within a window, from a bounded sample of the newest runs. So the figures are the same
in every process, survive a restart, and cost the same however long the history is.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.agent.prices import MICROS
from gofer.agent.tools.registry import RECALL
from gofer.connections.inflow import CATCH_UP, POLL, SET_UP
from gofer.heartbeat.records import LEDGER, RESEARCH_CALL
from gofer.jobs import kinds
from gofer.memory.manager import MEMORY
from gofer.runs.spend import today
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import (
    SCHEDULE,
    JobState,
    agents,
    attempts,
    events,
    heartbeat_findings,
    in_state,
    jobs,
    messages,
    replies,
    spends,
    tasks,
)
from gofer.web.queries.costs import calendar_days

WINDOWS = {"hour": 3600.0, "day": 86400.0}
MAX_RUNS = 500
"""Answers of one window from which waiting times are computed, the newest."""
MAX_JOBS = 5000
"""Ended jobs of one window in which failures are counted, the newest."""
MAX_AGENTS = 50
"""Whose heartbeats are told apart."""
DAYS = 7
"""Days for which the cost of heartbeats is shown."""
OTHER = "other"
WORKER_KINDS = ("research", "execution", "status", "plan", "report")
KINDS = frozenset(
    {
        *(value for name, value in vars(kinds).items() if name.isupper()),
        *(POLL, CATCH_UP, SET_UP, MEMORY),
        *(f"{kinds.TASK}.{kind}" for kind in WORKER_KINDS),
    }
)
"""The kinds of job that are told apart, tasks by the kind of their worker; every other is `other`."""
QUANTILES = (0.5, 0.95)
FIGURES_TTL = 10.0
"""Seconds for which figures are not computed again."""
UNDER_WAY = (JobState.READY, JobState.BLOCKED, JobState.SCHEDULED, JobState.WAITING, JobState.RUNNING)


@dataclass
class ServiceLevels:
    """The figures, computed at most once in a while however many ask."""

    database: Database
    timezone: str
    _found: dict[str, Any] | None = field(default=None, repr=False)
    _at: float = 0.0

    async def read(self) -> dict[str, Any]:
        """All of them."""
        if self._found is None or time.monotonic() - self._at > FIGURES_TTL:
            self._found = await self.database.read(service_levels, timezone=self.timezone)
            self._at = time.monotonic()
        return self._found


def service_levels(connection: Connection, timezone: str) -> dict[str, Any]:
    """Waiting times, failures and recall for each window; the queue as it is now; what heartbeats cost by day."""
    return {
        "windows": [_window(connection, name, seconds) for name, seconds in WINDOWS.items()],
        "queue": _queue(connection),
        "heartbeats": _heartbeats(connection, timezone),
    }


def _window(connection: Connection, name: str, seconds: float) -> dict[str, Any]:
    answered = _answered(connection, seconds)
    first = [word - asked for asked, word, _ in answered if word is not None]
    whole = [sent - asked for asked, _, sent in answered if sent is not None]
    runs, recalled = _recalled(connection, seconds)
    return {
        "window": name,
        "first_word": _quantiles(first),
        "answer": _quantiles(whole),
        "sampled": len(answered) >= MAX_RUNS,
        "runs": runs,
        "recall_rate": recalled / runs if runs else None,
        "kinds": _failures(connection, seconds),
    }


def _quantiles(waits: Sequence[float]) -> dict[str, Any]:
    """The median and the 95th percentile by nearest rank; None without anything to count."""
    ordered = sorted(max(0.0, wait) for wait in waits)
    at = [ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)] for share in QUANTILES if ordered]
    p50, p95 = at if ordered else (None, None)
    return {"count": len(ordered), "p50": p50, "p95": p95}


def _ended(seconds: float) -> Any:
    """The newest jobs that ended within a window, through the index of their end."""
    return (
        select(jobs)
        .where(jobs.c.finished_at.is_not(None), jobs.c.finished_at > now() - seconds)
        .order_by(jobs.c.finished_at.desc())
        .limit(MAX_JOBS)
    )


def _answers(seconds: float) -> Any:
    """The answers among them, the newest: however many other jobs there are, no more are looked at."""
    ended = _ended(seconds).subquery()
    return (
        select(ended)
        .where(ended.c.kind == kinds.ANSWER)
        .order_by(ended.c.finished_at.desc())
        .limit(MAX_RUNS)
        .subquery()
    )


def _answered(connection: Connection, seconds: float) -> list[tuple[float, float | None, float | None]]:
    """Of each answer: when it was asked for, when the model's first word came, and when all was sent."""
    run = _answers(seconds)
    asked = (
        select(func.min(messages.c.created_at))
        .where(messages.c.conversation_id == run.c.conversation_id, messages.c.seq > run.c.covers_from)
        .where(messages.c.seq <= run.c.covers_to, messages.c.addressed, messages.c.event != SCHEDULE)
        .scalar_subquery()
    )
    silence = events.c.data["word_ms"].as_integer()
    word = (
        select(func.min(events.c.at - silence / 1000.0))
        .where(events.c.job_id == run.c.id, events.c.kind == "turn.finished", silence.is_not(None))
        .scalar_subquery()
    )
    sent = (
        select(func.max(replies.c.sent_at))
        .where(replies.c.job_id == run.c.id, replies.c.kind == "final")
        .scalar_subquery()
    )
    columns = (run.c.id, asked.label("asked"), word.label("word"), sent.label("sent"))
    rows = connection.execute(select(*columns))
    return [(row.asked, row.word, row.sent) for row in rows if row.asked is not None]


def _recalled(connection: Connection, seconds: float) -> tuple[int, int]:
    """Answers of a window, and how many of their runs recalled something."""
    run = _answers(seconds)
    used = (
        select(events.c.id)
        .where(events.c.job_id == run.c.id, events.c.kind == "tool.finished")
        .where(events.c.data["name"].as_string() == RECALL, events.c.data["status"].as_string() == "ok")
        .exists()
    )
    rows = connection.execute(select(run.c.id, used.label("used"))).all()
    return len(rows), sum(bool(row.used) for row in rows)


def _failures(connection: Connection, seconds: float) -> list[dict[str, Any]]:
    """By kind: jobs that ended, those that were given up, and tries that had to be repeated."""
    rows = connection.execute(_ended(seconds)).all()
    named = _kinds_of(connection, rows)
    ended, dead = Counter(named.values()), Counter(named[job_id] for job_id in _failed(connection, rows))
    again: Counter[str] = Counter()
    for part in _batches(list(named)):
        query = (
            select(attempts.c.job_id, func.count())
            .where(attempts.c.job_id.in_(part), attempts.c.outcome.in_(("retry", "lost")))
            .group_by(attempts.c.job_id)
        )
        for job_id, count in connection.execute(query):
            again[named[job_id]] += int(count)
    return [
        {"kind": kind, "ended": count, "errors": dead[kind], "retries": again[kind]}
        for kind, count in sorted(ended.items())
    ]


def _failed(connection: Connection, rows: Sequence[Any]) -> set[int]:
    """The jobs that were given up, or whose task came to nothing: a plan that is none, a worker that failed."""
    failed = {int(row.id) for row in rows if row.state == JobState.DEAD}
    for part in _batches([row.id for row in rows if row.kind == kinds.TASK]):
        query = select(tasks.c.job_id).where(tasks.c.job_id.in_(part), tasks.c.state == "failed")
        failed |= set(connection.execute(query).scalars())
    return failed


def _kinds_of(connection: Connection, rows: Iterable[Any]) -> dict[int, str]:
    """The kind of each job; a task's has the kind of its worker behind a dot."""
    found = {row.id: row.kind if row.kind in KINDS else OTHER for row in rows}
    of_task = {row.payload.get("task"): row.id for row in rows if row.kind == kinds.TASK}
    for part in _batches([str(task) for task in of_task]):
        for row in connection.execute(select(tasks.c.id, tasks.c.kind).where(tasks.c.id.in_(part))):
            name = f"{kinds.TASK}.{row.kind}"
            found[of_task[row.id]] = name if name in KINDS else OTHER
    return found


def _batches(ids: Sequence[Any], size: int = 500) -> Iterable[Sequence[Any]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _queue(connection: Connection) -> list[dict[str, Any]]:
    """By kind: what waits, what runs, and how long the oldest job has been ready."""
    waits: defaultdict[str, Counter[str]] = defaultdict(Counter)
    oldest: defaultdict[str, float] = defaultdict(float)
    for state in UNDER_WAY:
        # One query for each state, because each has a partial index.
        query = select(
            jobs.c.kind, func.count().label("depth"), (now() - func.min(jobs.c.run_at)).label("age")
        )
        for row in connection.execute(query.where(in_state(state)).group_by(jobs.c.kind)):
            kind = row.kind if row.kind in KINDS else OTHER
            waits[kind][state.value] += int(row.depth)
            if state is JobState.READY:
                oldest[kind] = max(oldest[kind], float(row.age or 0))
    return [
        {
            "kind": kind,
            "ready": found["ready"],
            "blocked": found["blocked"],
            "scheduled": found["scheduled"],
            "waiting": found["waiting"],
            "running": found["running"],
            "oldest_seconds": oldest[kind],
        }
        for kind, found in sorted(waits.items())
    ]


def _heartbeats(connection: Connection, timezone: str) -> list[dict[str, Any]]:
    """Dollars that heartbeats cost by agent and day, the newest day first."""
    days = calendar_days(today(connection, timezone), DAYS)
    lately = heartbeat_findings.c.found_at > now() - (DAYS + 2) * 86400.0
    # What a heartbeat has looked into by a worker run is its cost as well.
    tasked = (
        select(tasks.c.job_id)
        .where(tasks.c.parent_job_id.in_(select(heartbeat_findings.c.job_id).where(lately)))
        .where(tasks.c.call_id == RESEARCH_CALL, tasks.c.job_id.is_not(None))
    )
    query = (
        select(
            spends.c.day,
            agents.c.name,
            func.sum(spends.c.micros).label("micros"),
            func.count().label("calls"),
        )
        .join(agents, agents.c.id == spends.c.agent_id)
        .where(
            spends.c.day.in_(days),
            spends.c.key.startswith(LEDGER, autoescape=True) | spends.c.job_id.in_(tasked),
        )
        .group_by(spends.c.day, agents.c.name)
        .order_by(spends.c.day.desc(), agents.c.name)
    )
    rows = connection.execute(query).all()
    shown = sorted(dict.fromkeys(row.name for row in rows))[:MAX_AGENTS]
    summed: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        line = summed.setdefault((row.day, row.name if row.name in shown else OTHER), [0, 0])
        line[0] += int(row.micros)
        line[1] += int(row.calls)
    return [
        {"day": day, "agent": name, "dollars": micros / MICROS, "calls": calls, "today": day == days[-1]}
        for (day, name), (micros, calls) in summed.items()
    ]
