"""Schedules: jobs made again and again, and words said to an agent again and again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from cronsim import CronSim
from pydantic import Field, field_validator
from sqlalchemy import Connection, bindparam, delete, or_, select
from sqlalchemy.exc import IntegrityError
from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.inflow import SCHEDULABLE, check_schedulable
from gofer.errors import Conflict, NotFound
from gofer.jobs.control import find_job
from gofer.jobs.cron import Missed, add_schedule, next_tick, spelt_out, ticks
from gofer.jobs.notifications import JOBS
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.scheduled_messages import SAY, ScheduledMessage, add_scheduled_message, sealed_message, told
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import schedules
from gofer.vault.envelope import Vault
from gofer.web.api.http import (
    WORKSPACE,
    EmptyBody,
    RequestModel,
    answered,
    asked,
    check_match,
    etag_of,
    platform_of,
    rows,
)
from gofer.web.auth import note, visitor_of
from gofer.web.auth.members import first_owner

LONGEST = 100_000
"""Characters a schedule may say, like anybody in the web chat."""
_ANY_TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - what a line means is the same at any time


class Times(RequestModel):
    """What every schedule has."""

    name: str = Field(min_length=1, max_length=100)
    cron: str = Field(max_length=200)
    timezone: str = Field(default="", max_length=100, description="The workspace's when empty.")
    missed: Missed = "once"


def known_kind(kind: str) -> str:
    """A kind of job that a schedule can make; raises ValueError with those there are."""
    if kind not in SCHEDULABLE:
        raise ValueError(
            f"a schedule makes no job of the kind {kind[:40]!r}. It can be: {', '.join(SCHEDULABLE)}"
        )
    return kind


class NewSchedule(Times):
    """A schedule that makes a job."""

    kind: str = Field(max_length=100, json_schema_extra={"enum": [*SCHEDULABLE]})
    payload: dict[str, Any] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_kind(value)


class NewScheduledMessage(Times):
    """A schedule that says something to an agent."""

    agent: str = Field(min_length=1, max_length=100)
    say: str = Field(min_length=1, max_length=LONGEST, pattern=r"\S")


class ScheduleChange(RequestModel):
    """What to change of one."""

    cron: str | None = Field(default=None, max_length=200)
    timezone: str | None = Field(default=None, max_length=100)
    missed: Missed | None = None
    payload: dict[str, Any] | None = None
    say: str | None = Field(default=None, min_length=1, max_length=LONGEST, pattern=r"\S")
    enabled: bool | None = None


async def index(request: Request) -> Response:
    """List schedules."""
    platform = platform_of(request)
    found = await platform.database.read(
        lambda connection: [
            told(connection, platform.vault, row)
            for row in rows(connection, select(schedules).order_by(schedules.c.name))
        ]
    )
    return answered(request, {"schedules": found})


async def show(request: Request) -> Response:
    """One schedule, with its next five times."""
    platform = platform_of(request)
    shown = await platform.database.read(
        partial(_show, vault=platform.vault, named=request.path_params["id"])
    )
    return _shown(request, *shown)


def _show(connection: Connection, vault: Vault, named: str) -> tuple[dict[str, Any], str]:
    row = find_schedule(connection, named)
    return told(connection, vault, row), _version(row)


def _shown(request: Request, row: dict[str, Any], version: str) -> Response:
    upcoming, words = outlook(row)
    return answered(request, {**row, "upcoming": upcoming, "words": words}, etag=version)


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
    """Add a schedule that makes a job."""
    new = await asked(request, NewSchedule)
    verb = partial(add_job, workspace_id=WORKSPACE, kind=new.kind, payload=new.payload)
    return await _add(request, new, verb)


def add_job(connection: Connection, *, payload: dict[str, Any], **given: Any) -> str:
    """Add a schedule that makes a job; raises ConfigError when its line, or its job, would come to nothing."""
    schedule_id = add_schedule(connection, payload=payload, **given)
    check_schedulable(connection, payload)
    return schedule_id


async def say(request: Request) -> Response:
    """Add a schedule that says something to an agent in a conversation, with the trust of the owner who adds it."""
    new = await asked(request, NewScheduledMessage)
    vault, conversation_id = platform_of(request).vault, request.path_params["id"]

    def verb(connection: Connection, **times: Any) -> str:
        saying = ScheduledMessage(new.agent, conversation_id, _maker(connection, request), new.say)
        return add_scheduled_message(connection, vault, saying, workspace_id=WORKSPACE, **times)

    return await _add(request, new, verb)


async def _add(request: Request, new: Times, verb: Callable[..., str]) -> Response:
    platform = platform_of(request)
    timezone = new.timezone or platform.settings.timezone
    times = {"name": new.name, "cron": new.cron, "timezone": timezone, "missed": new.missed}
    try:
        schedule_id = await platform.database.write(partial(verb, **times))
    except IntegrityError:
        raise Conflict(f"There is a schedule {new.name!r} already. Remove it first.") from None
    note(request, name=new.name)
    location = f"/schedules/{schedule_id}"
    return answered(request, {"id": schedule_id, "name": new.name}, 201, location=location)


def _maker(connection: Connection, request: Request) -> str:
    """The owner on whose behalf a schedule speaks; the command line speaks for the first one."""
    return visitor_of(request).member_id or str(first_owner(connection).id)


async def change(request: Request) -> Response:
    """Change a schedule, or switch it on or off."""
    wish = await asked(request, ScheduleChange)
    note(request, fields=sorted(wish.model_fields_set))
    shown = await platform_of(request).database.write(
        partial(_change, request=request, named=request.path_params["id"], wish=wish)
    )
    return _shown(request, *shown)


def _change(
    connection: Connection, request: Request, named: str, wish: ScheduleChange
) -> tuple[dict[str, Any], str]:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    given = {name: value for name, value in wish.model_dump().items() if value is not None}
    if ("payload" if row["kind"] == SAY else "say") in given:
        raise Conflict("A schedule that says something has `say` to change, any other has `payload`.")
    if "payload" in given:
        check_schedulable(connection, given["payload"])
    if "say" in given:
        given["payload"] = _said_anew(connection, request, row, given.pop("say"))
    if "cron" in given:
        given["cron"] = spelt_out(given["cron"])
    merged = {**row, **given}
    if given:
        given["next_at"] = next_tick(connection, merged["cron"], merged["timezone"])
        row_macs.update(connection, schedules, schedules.c.id == row["id"], given)
    row = {**row, **given}
    return told(connection, platform_of(request).vault, row), _version(row)


def _said_anew(connection: Connection, request: Request, row: dict[str, Any], text: str) -> dict[str, Any]:
    """Other words, on behalf of whoever chose them."""
    kept = row["payload"]
    saying = ScheduledMessage(kept["agent"], kept["conversation_id"], _maker(connection, request), text)
    return sealed_message(connection, platform_of(request).vault, saying, name=row["name"])


async def run(request: Request) -> Response:
    """Make a schedule's job now, beside its own times."""
    platform = platform_of(request)
    await asked(request, EmptyBody)
    job_id = await platform.database.write(partial(run_schedule, named=request.path_params["id"]))
    platform.signals.wake(JOBS)
    row = await platform.database.read(partial(find_job, job_id=job_id))
    return answered(request, {"id": job_id, "state": row.state}, 202, location=f"/jobs/{job_id}")


def run_schedule(connection: Connection, named: str) -> int:
    """Make its job now; raises NotFound."""
    row = find_schedule(connection, named)
    row_macs.require(connection, schedules, connection.execute(_BY_ID, {"id": row["id"]}).one())
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


_BY_ID = select(schedules).where(schedules.c.id == bindparam("id"))


async def remove(request: Request) -> Response:
    """Remove a schedule, by id or name."""
    named = request.path_params["id"]
    await platform_of(request).database.write(partial(_remove, request=request, named=named))
    return answered(request, {"id": named})


def _remove(connection: Connection, request: Request, named: str) -> None:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    connection.execute(delete(schedules).where(schedules.c.id == row["id"]))
