"""Schedules: jobs made again and again."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from cronsim import CronSim
from pydantic import Field
from sqlalchemy import Connection, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, NotFound
from gofer.jobs.cron import Missed, add_schedule, next_tick, ticks
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.signals import JOBS
from gofer.jobs.steer import find_job
from gofer.store.clock import now
from gofer.store.tables import schedules
from gofer.web.access import note
from gofer.web.control.asking import (
    WORKSPACE,
    Nothing,
    Question,
    answered,
    asked,
    check_match,
    etag_of,
    platform_of,
    rows,
)

_ANY_TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - what a line means is the same at any time


class New(Question):
    """A schedule to add."""

    name: str = Field(min_length=1, max_length=100)
    cron: str = Field(max_length=200)
    kind: str = Field(min_length=1, max_length=100)
    payload: dict[str, Any] = Field(default_factory=dict)
    timezone: str = Field(default="", max_length=100, description="The workspace's when empty.")
    missed: Missed = "once"


class Change(Question):
    """What to change of one."""

    cron: str | None = Field(default=None, max_length=200)
    timezone: str | None = Field(default=None, max_length=100)
    missed: Missed | None = None
    payload: dict[str, Any] | None = None
    enabled: bool | None = None


async def index(request: Request) -> Response:
    """List schedules."""
    found = await platform_of(request).database.read(
        lambda connection: rows(connection, select(schedules).order_by(schedules.c.name))
    )
    return answered(request, {"schedules": found})


async def show(request: Request) -> Response:
    """One schedule, with its next five times."""
    row = await platform_of(request).database.read(partial(find_schedule, named=request.path_params["id"]))
    return _shown(request, row)


def _shown(request: Request, row: dict[str, Any]) -> Response:
    upcoming, words = outlook(row)
    return answered(request, {**row, "upcoming": upcoming, "words": words}, etag=_version(row))


def outlook(row: Any) -> tuple[list[float], str]:
    """A schedule's next five times, and its cron line in words."""
    if not row["enabled"]:
        return [], CronSim(row["cron"], _ANY_TIME).explain()
    later = islice(ticks(row["cron"], row["timezone"], row["next_at"]), 4)
    return [row["next_at"], *later], CronSim(row["cron"], _ANY_TIME).explain()


def _version(row: Any) -> str:
    return etag_of(*(row[name] for name in ("cron", "timezone", "missed", "payload", "enabled")))


def find_schedule(connection: Connection, named: str, *, to_change: bool = False) -> dict[str, Any]:
    """By id or name; raises NotFound."""
    query = select(schedules).where(or_(schedules.c.id == named, schedules.c.name == named)).limit(1)
    found = rows(connection, query.with_for_update() if to_change else query)
    if not found:
        raise NotFound(f"There is no schedule {named[:60]!r}. `gofer schedules list` shows those there are.")
    return found[0]


async def add(request: Request) -> Response:
    """Add a schedule."""
    platform = platform_of(request)
    new = await asked(request, New)
    fields = {**new.model_dump(), "timezone": new.timezone or platform.settings.timezone}
    try:
        schedule_id = await platform.database.write(partial(add_schedule, workspace_id=WORKSPACE, **fields))
    except IntegrityError:
        raise Conflict(f"There is a schedule {new.name!r} already. Remove it first.") from None
    note(request, name=new.name)
    location = f"/schedules/{schedule_id}"
    return answered(request, {"id": schedule_id, "name": new.name}, 201, location=location)


async def change(request: Request) -> Response:
    """Change a schedule, or switch it on or off."""
    wish = await asked(request, Change)
    note(request, fields=sorted(wish.model_fields_set))
    row = await platform_of(request).database.write(
        partial(_change, request=request, named=request.path_params["id"], wish=wish)
    )
    return _shown(request, row)


def _change(connection: Connection, request: Request, named: str, wish: Change) -> dict[str, Any]:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    given = {name: value for name, value in wish.model_dump().items() if value is not None}
    merged = {**row, **given}
    if given:
        given["next_at"] = next_tick(connection, merged["cron"], merged["timezone"])
        connection.execute(update(schedules).where(schedules.c.id == row["id"]).values(**given))
    return {**row, **given}


async def run(request: Request) -> Response:
    """Make a schedule's job now, beside its own times."""
    platform = platform_of(request)
    await asked(request, Nothing)
    job_id = await platform.database.write(partial(_run, named=request.path_params["id"]))
    platform.signals.wake(JOBS)
    row = await platform.database.read(partial(find_job, job_id=job_id))
    return answered(request, {"id": job_id, "state": row.state}, 202, location=f"/jobs/{job_id}")


def _run(connection: Connection, named: str) -> int:
    row = find_schedule(connection, named)
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


async def remove(request: Request) -> Response:
    """Remove a schedule, by id or name."""
    named = request.path_params["id"]
    await platform_of(request).database.write(partial(_remove, request=request, named=named))
    return answered(request, {"id": named})


def _remove(connection: Connection, request: Request, named: str) -> None:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    connection.execute(delete(schedules).where(schedules.c.id == row["id"]))
