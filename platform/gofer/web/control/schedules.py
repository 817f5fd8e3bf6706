"""Schedules: jobs made again and again."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, delete, or_, select
from sqlalchemy.exc import IntegrityError
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, NotFound
from gofer.jobs.cron import Missed, add_schedule
from gofer.store.tables import schedules
from gofer.web.control.asking import WORKSPACE, Question, answered, asked, platform_of, rows


class New(Question):
    """A schedule to add."""

    name: str
    cron: str
    kind: str
    payload: dict[str, Any] = Field(default_factory=dict)
    timezone: str = ""
    """The workspace's when empty."""
    missed: Missed = "once"


async def index(request: Request) -> Response:
    """List schedules."""
    found = await platform_of(request).database.read(
        lambda connection: rows(connection, select(schedules).order_by(schedules.c.name))
    )
    return answered(request, {"schedules": found})


async def add(request: Request) -> Response:
    """Add a schedule."""
    platform = platform_of(request)
    new = await asked(request, New)
    fields = {**new.model_dump(), "timezone": new.timezone or platform.settings.timezone}
    try:
        schedule_id = await platform.database.write(partial(add_schedule, workspace_id=WORKSPACE, **fields))
    except IntegrityError:
        raise Conflict(f"There is a schedule {new.name!r} already. Remove it first.") from None
    return answered(request, {"id": schedule_id, "name": new.name}, 201)


async def remove(request: Request) -> Response:
    """Remove a schedule, by id or name."""
    named = request.path_params["id"]
    await platform_of(request).database.write(partial(_remove, named=named))
    return answered(request, {"id": named})


def _remove(connection: Connection, named: str) -> None:
    here = or_(schedules.c.id == named, schedules.c.name == named)
    if connection.execute(delete(schedules).where(here)).rowcount == 0:
        raise NotFound(f"There is no schedule {named!r}. `gofer schedules list` shows those there are.")
