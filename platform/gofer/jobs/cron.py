"""Schedules: makes the jobs that are due, each exactly once, whichever process looks first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal
from zoneinfo import ZoneInfo

import structlog
from cronsim import CronSim, CronSimError
from sqlalchemy import Connection, or_, select, update

from gofer.errors import ConfigError
from gofer.jobs.queue import SERVICE, submit
from gofer.store import events, row_macs
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import schedules

log = structlog.get_logger()

Missed = Literal["skip", "once", "all"]

NO_TIMES = (CronSimError, StopIteration, KeyError, ValueError, OverflowError, OSError)
"""What the search for a schedule's times raises when there are none, or when the time zone is unknown."""

_NEVER = float("inf")
"""What an earlier release stored as the next time of a schedule that has none. No JSON has a number for it."""
_NONE_LEFT = "Its cron line never comes due again."

MAX_CAUGHT_UP = 100
"""Missed runs that the policy `all` makes up for at most: a year of downtime must not become a storm."""


SHORTCUTS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def spelt_out(cron: str) -> str:
    """A cron line with its five fields; a shortcut such as `@daily` is spelt out."""
    return SHORTCUTS.get(cron.strip().lower(), cron)


def ticks(cron: str, timezone: str, after: float) -> Iterator[float]:
    """The times of a schedule after a moment, correct across changes of daylight saving."""
    start = datetime.fromtimestamp(after, ZoneInfo(timezone))
    for moment in CronSim(cron, start):
        yield moment.timestamp()


def add_schedule(
    connection: Connection,
    *,
    workspace_id: str,
    name: str,
    cron: str,
    kind: str,
    payload: dict[str, Any] | None = None,
    timezone: str = "UTC",
    missed: Missed = "once",
) -> str:
    """Add a schedule; raises ConfigError when its cron line means nothing."""
    cron = spelt_out(cron)
    following = next_tick(connection, cron, timezone)
    schedule_id = new_id("sched")
    row = {
        "id": schedule_id,
        "workspace_id": workspace_id,
        "name": name,
        "cron": cron,
        "timezone": timezone,
        "missed": missed,
        "kind": kind,
        "payload": payload or {},
        "enabled": True,
        "next_at": following,
        "created_at": now(),
    }
    row_macs.insert(connection, schedules, row)
    note_change(connection, row, "added")
    return schedule_id


def note_change(connection: Connection, row: Mapping[str, Any], action: str) -> None:
    """Put on record that a schedule was added, updated or removed."""
    data = {"schedule": row["id"], "kind": row["kind"], "action": action}
    events.record(connection, "schedule.changed", row["workspace_id"], data=data)


def next_tick(connection: Connection, cron: str, timezone: str) -> float:
    """When a cron line next comes due; raises ConfigError when it means nothing."""
    current = float(connection.execute(select(now())).scalar_one())
    if not _is_time_zone(timezone):
        raise ConfigError(f"There is no time zone {timezone!r}. They are called like Europe/Berlin, or UTC.")
    try:
        return next(ticks(cron, timezone, current))
    except NO_TIMES as error:
        raise ConfigError(
            f"{cron!r} is not a cron line that ever comes due in {timezone}: {error}."
        ) from error


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def tick(connection: Connection) -> int:
    """Make the jobs of every schedule that is due; returns how many."""
    due = connection.execute(
        select(schedules, now().label("current"))
        .where(or_(schedules.c.enabled & (schedules.c.next_at <= now()), schedules.c.next_at == _NEVER))
        .with_for_update(skip_locked=True)
    ).all()
    return sum(
        _run_due(connection, schedule) for schedule in due if row_macs.fits(connection, schedules, schedule)
    )


def _run_due(connection: Connection, schedule: Any) -> int:
    if schedule.next_at == _NEVER:
        return _switch_off(connection, schedule, _NONE_LEFT)
    try:
        missed, following = _due_times(schedule)
    except NO_TIMES as error:
        # Its time zone may be unknown here. Other schedules and the rest of maintenance must not wait for it.
        return _switch_off(connection, schedule, str(error))
    made = 0
    for moment in _to_run(missed, schedule.missed, schedule.current):
        made += None is not submit(
            connection,
            workspace_id=schedule.workspace_id,
            kind=schedule.kind,
            lane=f"schedule:{schedule.id}",
            pool=SERVICE,
            payload={**schedule.payload, "due_at": moment},
            unique_key=f"{schedule.id}:{moment:.0f}",
        )
    if following is None:
        _switch_off(connection, schedule, _NONE_LEFT)
    else:
        connection.execute(update(schedules).where(schedules.c.id == schedule.id).values(next_at=following))
    return made


def _switch_off(connection: Connection, schedule: Any, why: str) -> int:
    log.error("schedule.switched_off", schedule=schedule.id, name=schedule.name, error=why)
    values = {"enabled": False, "next_at": schedule.current}
    row_macs.update(connection, schedules, schedules.c.id == schedule.id, values)
    return 0


def _due_times(schedule: Any) -> tuple[list[float], float | None]:
    """The last times that passed since the last look, and the next one, if there is one."""
    current = datetime.fromtimestamp(schedule.current, ZoneInfo(schedule.timezone))
    # Backwards from now (itself included), so that a schedule of every minute costs no more after a year away.
    backwards = CronSim(schedule.cron, current + timedelta(microseconds=1), reverse=True)
    recent = (moment.timestamp() for moment in islice(backwards, MAX_CAUGHT_UP))
    passed = [*takewhile(lambda moment: moment >= schedule.next_at, recent)] or [schedule.next_at]
    return passed[::-1], next(ticks(schedule.cron, schedule.timezone, schedule.current), None)


ON_TIME = 60.0
"""Seconds after its time in which a run still counts as on time."""


def _to_run(passed: list[float], policy: Missed, current: float) -> list[float]:
    """The times to run for, by the policy for missed runs."""
    if policy == "all":
        return passed
    if policy == "skip" and current - passed[-1] > ON_TIME:
        return []
    return passed[-1:]
