"""Schedules: what they say in words, when they run next, and running one now."""

from __future__ import annotations

import json
import time
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from sqlalchemy import Connection, delete, select, update
from sqlalchemy.exc import IntegrityError
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, Malformed
from gofer.intake.polling import CATCH_UP, POLL, SET_UP
from gofer.jobs import sayings
from gofer.jobs.cron import add_schedule, ticks
from gofer.store.open import FIRST_WORKSPACE
from gofer.store.tables import schedules
from gofer.web.control.schedules import find_schedule, run_schedule
from gofer.web.pages.rendering import go, platform_of, render
from gofer.web.pages.serving import form_of, page, rows, text_of, wake

NEXT = 5


@page("viewer")
async def index(request: Request) -> Response:
    """The list, and a form for another."""
    platform = platform_of(request)
    found = await platform.database.read(
        lambda connection: [
            sayings.told(connection, platform.vault, row)
            for row in rows(connection, select(schedules).order_by(schedules.c.name))
        ]
    )
    return render(
        request,
        "schedules.html",
        schedules=[{**each, **told(each["cron"], each["timezone"])} for each in found],
        timezone=platform.settings.timezone,
        kinds=(CATCH_UP, POLL, SET_UP),
    )


def told(cron: str, timezone: str) -> dict[str, Any]:
    """A cron line in words, and its next times."""
    now = time.time()
    try:
        words = CronSim(cron, datetime.fromtimestamp(now, ZoneInfo(timezone))).explain()
        following = list(islice(ticks(cron, timezone, now), NEXT))
    except (CronSimError, KeyError, ValueError):
        return {"words": "This line makes no sense.", "next": []}
    return {"words": words, "next": [{"at": at, "words": _moment(at, timezone)} for at in following]}


def _moment(at: float, timezone: str) -> str:
    return datetime.fromtimestamp(at, ZoneInfo(timezone)).strftime("%a %d %b, %H:%M")


@page("owner")
async def add(request: Request) -> Response:
    """Add one."""
    platform, form = platform_of(request), await form_of(request)
    fields = {name: text_of(form, name).strip() for name in ("name", "cron", "kind", "missed")}
    if not fields["name"] or not fields["kind"]:
        raise Malformed("A schedule needs a name and a kind of job.")
    if fields["missed"] not in ("skip", "once", "all"):
        raise Malformed("missed: must be skip, once or all.")
    payload = _payload(text_of(form, "payload"))
    timezone = text_of(form, "timezone").strip() or platform.settings.timezone
    verb = partial(add_schedule, workspace_id=FIRST_WORKSPACE, payload=payload, timezone=timezone, **fields)  # type: ignore[arg-type]
    try:
        await platform.database.write(verb)
    except IntegrityError:
        raise Conflict(f"There is a schedule {fields['name']!r} already. Remove it first.") from None
    return go("/schedules", f"{fields['name']} is added.")


def _payload(text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text or "{}")
    except ValueError:
        raise Malformed("payload: must be a JSON object.") from None
    if not isinstance(payload, dict):
        raise Malformed("payload: must be a JSON object.")
    return payload


@page("operator")
async def run_now(request: Request) -> Response:
    """One run beside those of its calendar."""
    job_id = await platform_of(request).database.write(partial(run_schedule, named=request.path_params["id"]))
    wake(request)
    return go(f"/runs/{job_id}", "Begun.")


@page("owner")
async def switch(request: Request) -> Response:
    """On or off."""
    form = await form_of(request)
    enabled = text_of(form, "enabled") == "on"
    await platform_of(request).database.write(
        partial(_switch, schedule_id=request.path_params["id"], enabled=enabled)
    )
    return go("/schedules", "Switched on." if enabled else "Switched off.")


def _switch(connection: Connection, schedule_id: str, enabled: bool) -> None:
    row = find_schedule(connection, schedule_id)
    # Back on, it goes on from now: what it missed while it was off was not wanted.
    following = next(ticks(row["cron"], row["timezone"], time.time()), float("inf"))
    connection.execute(
        update(schedules).where(schedules.c.id == schedule_id).values(enabled=enabled, next_at=following)
    )


@page("owner")
async def remove(request: Request) -> Response:
    """Remove one."""
    schedule_id = request.path_params["id"]
    row = await platform_of(request).database.write(partial(_remove, schedule_id=schedule_id))
    return go("/schedules", f"{row} is removed.")


def _remove(connection: Connection, schedule_id: str) -> str:
    name = str(find_schedule(connection, schedule_id)["name"])
    connection.execute(delete(schedules).where(schedules.c.id == schedule_id))
    return name
