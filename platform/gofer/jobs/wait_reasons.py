"""Why a job waits and until when, in words for people."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, func, select

from gofer.jobs.outcome import OUTAGE
from gofer.store.db_time import now
from gofer.store.tables import attempts

NOTICED = 60.0
"""Seconds after which people wonder where their answer is."""
REASONS = {
    "model.unavailable": "the model's provider makes us wait",
    "model.retryable": "the model failed",
    "service.wait": "a service that a tool uses makes us wait",
    OUTAGE: "the database was away",
    "worker.lost": "the process that worked on it stopped",
}


def why(reason: str) -> str:
    """The reason of a waiting job in words, or its code when there are no words for it."""
    return REASONS.get(reason, f"it said {reason}")


def clock_time(at: float, timezone: str, today: float) -> str:
    """A time for people: the time of day, rounded up, with the date when that is not today's."""
    zone = ZoneInfo(timezone)
    moment, here = (datetime.fromtimestamp(each, UTC).astimezone(zone) for each in (at + 59, today))
    date = "" if moment.date() == here.date() else f"{moment.day} {moment:%B}, "
    return f"{date}{moment:%H:%M %Z}"


def waited(connection: Connection, job_id: int) -> float:
    """Seconds that a job has spent between its tries."""
    worked = func.sum(func.coalesce(attempts.c.ended_at, now()) - attempts.c.started_at)
    query = select(now() - func.min(attempts.c.started_at) - worked).where(attempts.c.job_id == job_id)
    return max(0.0, float(connection.execute(query).scalar() or 0))
