"""Schedules: jobs made again and again, and words said to an agent again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from cronsim import CronSim
from sqlalchemy import Connection, delete, or_, select
from sqlalchemy.exc import IntegrityError

from gofer.app import Platform
from gofer.connections.inflow import SCHEDULABLE, check_schedulable
from gofer.errors import Conflict, NotFound
from gofer.intake.scheduled_messages import show_schedule
from gofer.jobs.cron import NO_TIMES, add_schedule, next_tick, note_change, spelt_out, ticks
from gofer.jobs.queue import SERVICE, submit
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import schedules
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, is_readable
from gofer.web.queries import rows

MAX_TEXT = 100_000
"""Characters a schedule may say, like anybody in the web chat."""
_ANY_TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - what a line means is the same at any time


def list_schedules(connection: Connection, vault: Vault, visitor: Visitor) -> list[dict[str, Any]]:
    """By name, with the words of those that say something where somebody may read."""
    query = select(schedules).order_by(schedules.c.name)
    found = [show_schedule(connection, vault, row) for row in rows(connection, query)]
    return [row for row in found if _open_to(connection, row, visitor)]


def _open_to(connection: Connection, shown: dict[str, Any], visitor: Visitor) -> bool:
    where = shown["conversation_id"]
    return not where or is_readable(connection, where, visitor)


def read_schedule(
    connection: Connection, vault: Vault, named: str, visitor: Visitor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schedule for people, and its row; raises NotFound, also where they may not read."""
    row = find_schedule(connection, named)
    shown = show_schedule(connection, vault, row)
    if not _open_to(connection, shown, visitor):
        raise _no_schedule(named)
    return shown, row


def find_schedule(connection: Connection, named: str, *, to_change: bool = False) -> dict[str, Any]:
    """By id or name; raises NotFound."""
    query = select(schedules).where(or_(schedules.c.id == named, schedules.c.name == named)).limit(1)
    found = rows(connection, query.with_for_update() if to_change else query)
    if not found:
        raise _no_schedule(named)
    return found[0]


def _no_schedule(named: str) -> NotFound:
    return NotFound(f"There is no schedule {named[:60]!r}. `gofer schedules list` shows those there are.")


def outlook(row: Mapping[str, Any]) -> tuple[list[float], str]:
    """A schedule's next five times, none while it is off, and its cron line in words."""
    try:
        words = CronSim(row["cron"], _ANY_TIME).explain()
        if not row["enabled"]:
            return [], words
        return [row["next_at"], *islice(ticks(row["cron"], row["timezone"], row["next_at"]), 4)], words
    except NO_TIMES:
        return [], "This line makes no sense."


def known_kind(kind: str) -> str:
    """A kind of job that a schedule can make; raises ValueError with those there are."""
    if kind not in SCHEDULABLE:
        raise ValueError(
            f"a schedule makes no job of the kind {kind[:40]!r}. It can be: {', '.join(SCHEDULABLE)}"
        )
    return kind


def add_job(connection: Connection, *, payload: dict[str, Any], **values: Any) -> str:
    """Add a schedule that makes a job; raises ConfigError when its cron line or its job is invalid."""
    schedule_id = add_schedule(connection, payload=payload, **values)
    check_schedulable(connection, payload)
    return schedule_id


async def add(platform: Platform, verb: Callable[..., str], *, name: str, **times: Any) -> str:
    """Add a schedule with `verb` and return its id; raises Conflict when the name is taken."""
    times["timezone"] = times["timezone"] or platform.settings.timezone
    try:
        return await platform.database.write(verb, workspace_id=FIRST_WORKSPACE, name=name, **times)
    except IntegrityError:
        raise Conflict(f"There is a schedule {name!r} already. Remove it first.") from None


def change_schedule(connection: Connection, row: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A schedule with other values, going on from now: what it missed while it was off was not wanted."""
    if not values:
        return row
    if "cron" in values:
        values = {**values, "cron": spelt_out(values["cron"])}
    row = {**row, **values}
    if values != {"enabled": False}:
        row["next_at"] = next_tick(connection, row["cron"], row["timezone"])
    here = schedules.c.id == row["id"]
    row_macs.update(connection, schedules, here, {**values, "next_at": row["next_at"]})
    note_change(connection, row, "updated")
    return row


def remove_schedule(connection: Connection, row: Mapping[str, Any]) -> None:
    """Remove a schedule."""
    connection.execute(delete(schedules).where(schedules.c.id == row["id"]))
    note_change(connection, row, "removed")


def run_schedule(connection: Connection, named: str) -> int:
    """Make a schedule's job now, beside its own times; raises NotFound."""
    row = find_schedule(connection, named)
    by_id = select(schedules).where(schedules.c.id == row["id"])
    row_macs.require(connection, schedules, connection.execute(by_id).one())
    due = float(connection.execute(select(now())).scalar_one())
    job_id = submit(
        connection,
        workspace_id=row["workspace_id"],
        kind=row["kind"],
        lane=f"schedule:{row['id']}",
        pool=SERVICE,
        payload={**row["payload"], "due_at": due},
    )
    assert job_id is not None  # it has no key that another could have used
    return job_id
