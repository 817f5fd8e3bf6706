"""Schedules: jobs and messages to agents that are made at set times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import Field, field_validator
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.connections.inflow import SCHEDULABLE, check_schedulable
from gofer.errors import Conflict
from gofer.intake.scheduled_messages import (
    ScheduledMessage,
    add_scheduled_message,
    sealed_message,
    show_schedule,
)
from gofer.jobs.control import find_job
from gofer.jobs.cron import Missed
from gofer.jobs.kinds import SAY
from gofer.jobs.notifications import JOBS
from gofer.web.api.http import ApiAnswer, RequestModel, check_match, etag_of, platform_of
from gofer.web.auth import note, visitor_of
from gofer.web.auth.members import first_owner
from gofer.web.queries import read_for, schedules
from gofer.web.queries.schedules import (
    MAX_TEXT,
    change_schedule,
    find_schedule,
    known_kind,
    list_schedules,
    outlook,
    remove_schedule,
    run_schedule,
)


class Times(RequestModel):
    """What every schedule has: when it is due, and whether it is on."""

    name: str = Field(min_length=1, max_length=100)
    cron: str = Field(max_length=200)
    timezone: str = Field(default="", max_length=100, description="The workspace's when empty.")
    missed: Missed = "once"


class NewSchedule(Times):
    """A schedule that makes a job."""

    kind: str = Field(max_length=100, json_schema_extra={"enum": [*SCHEDULABLE]})
    payload: dict[str, Any] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_kind(value)


class NewScheduledMessage(Times):
    """A schedule that sends a message to an agent."""

    agent: str = Field(min_length=1, max_length=100)
    say: str = Field(min_length=1, max_length=MAX_TEXT, pattern=r"\S")


class ScheduleChange(RequestModel):
    """What to change of a schedule."""

    cron: str | None = Field(default=None, max_length=200)
    timezone: str | None = Field(default=None, max_length=100)
    missed: Missed | None = None
    payload: dict[str, Any] | None = None
    say: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT, pattern=r"\S")
    enabled: bool | None = None


async def index(request: Request) -> dict[str, Any]:
    """List schedules."""
    return {"schedules": await read_for(request, list_schedules)}


async def show(request: Request) -> ApiAnswer:
    """Show a schedule, with its next five times."""
    shown, row = await read_for(request, schedules.read_schedule, named=request.path_params["id"])
    return _shown(request, shown, _version(row))


def _shown(request: Request, row: dict[str, Any], version: str) -> ApiAnswer:
    upcoming, words = outlook(row)
    return ApiAnswer({**row, "upcoming": upcoming, "words": words}, etag=version)


def _version(row: Any) -> str:
    return etag_of(*(row[name] for name in ("cron", "timezone", "missed", "payload", "enabled")))


async def add(request: Request, new: NewSchedule) -> ApiAnswer:
    """Add a schedule that makes a job."""
    return await _add(request, new, partial(schedules.add_job, kind=new.kind, payload=new.payload))


async def say(request: Request, new: NewScheduledMessage) -> ApiAnswer:
    """Add a schedule that sends a message to an agent in a conversation, with the trust of the owner who adds it."""
    vault, conversation_id = platform_of(request).vault, request.path_params["id"]

    def verb(connection: Connection, **times: Any) -> str:
        saying = ScheduledMessage(new.agent, conversation_id, _maker(connection, request), new.say)
        return add_scheduled_message(connection, vault, saying, **times)

    return await _add(request, new, verb)


async def _add(request: Request, new: Times, verb: Callable[..., str]) -> ApiAnswer:
    times = {"cron": new.cron, "timezone": new.timezone, "missed": new.missed}
    schedule_id = await schedules.add(platform_of(request), verb, name=new.name, **times)
    note(request, name=new.name)
    location = f"/schedules/{schedule_id}"
    return ApiAnswer({"id": schedule_id, "name": new.name}, location=location)


def _maker(connection: Connection, request: Request) -> str:
    """The owner on whose behalf a schedule speaks; the command line speaks for the first one."""
    return visitor_of(request).member_id or str(first_owner(connection).id)


async def change(request: Request, body: ScheduleChange) -> ApiAnswer:
    """Change a schedule, or switch it on or off."""
    note(request, fields=sorted(body.model_fields_set))
    shown = await platform_of(request).database.write(
        _change, request=request, named=request.path_params["id"], body=body
    )
    return _shown(request, *shown)


def _change(
    connection: Connection, request: Request, named: str, body: ScheduleChange
) -> tuple[dict[str, Any], str]:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    given = {name: value for name, value in body.model_dump().items() if value is not None}
    if ("payload" if row["kind"] == SAY else "say") in given:
        raise Conflict("A schedule that says something has `say` to change, any other has `payload`.")
    if "payload" in given:
        check_schedulable(connection, given["payload"])
    if "say" in given:
        given["payload"] = _with_text(connection, request, row, given.pop("say"))
    row = change_schedule(connection, row, given)
    return show_schedule(connection, platform_of(request).vault, row), _version(row)


def _with_text(connection: Connection, request: Request, row: dict[str, Any], text: str) -> dict[str, Any]:
    """Other words, on behalf of whoever chose them."""
    kept = row["payload"]
    saying = ScheduledMessage(kept["agent"], kept["conversation_id"], _maker(connection, request), text)
    return sealed_message(connection, platform_of(request).vault, saying, name=row["name"])


async def run(request: Request) -> ApiAnswer:
    """Make a schedule's job now, apart from its own times."""
    platform = platform_of(request)
    job_id = await platform.database.write(run_schedule, named=request.path_params["id"])
    platform.signals.wake(JOBS)
    row = await platform.database.read(find_job, job_id=job_id)
    return ApiAnswer({"id": job_id, "state": row.state}, location=f"/jobs/{job_id}")


async def remove(request: Request) -> dict[str, Any]:
    """Remove a schedule, by id or name."""
    named = request.path_params["id"]
    await platform_of(request).database.write(_remove, request=request, named=named)
    return {"id": named}


def _remove(connection: Connection, request: Request, named: str) -> None:
    row = find_schedule(connection, named, to_change=True)
    check_match(request, _version(row))
    remove_schedule(connection, row)
