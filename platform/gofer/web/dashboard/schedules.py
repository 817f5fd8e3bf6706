"""Schedules: what they say in words, when they run next, and running one now."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import IntegrityError
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.inflow import SCHEDULABLE
from gofer.errors import Conflict, Malformed
from gofer.jobs import scheduled_messages
from gofer.jobs.cron import spelt_out, ticks
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import conversations, schedules
from gofer.vault.envelope import Vault
from gofer.web.api.schedules import LONGEST, add_job, find_schedule, known_kind, run_schedule
from gofer.web.auth import visitor_of
from gofer.web.dashboard.endpoints import agent_names, form_of, page, rows, text_of, wake
from gofer.web.dashboard.render import go, platform_of, render
from gofer.web.titles import with_titles

NEXT = 5
LATELY = 50
"""Conversations to choose from, the newest; any other by its own page's address."""


@page("viewer")
async def index(request: Request) -> Response:
    """The list, and a form for another."""
    platform = platform_of(request)
    found = await platform.database.read(partial(read_list, vault=platform.vault))
    found["conversations"] = await with_titles(platform, found["conversations"], by="id")
    return render(request, "schedules.html", **found, timezone=platform.settings.timezone, kinds=SCHEDULABLE)


def read_list(connection: Connection, vault: Vault) -> dict[str, Any]:
    """Every schedule in words, and whom another could speak to, and where."""
    found = [
        {**scheduled_messages.told(connection, vault, row), **told(row["cron"], row["timezone"])}
        for row in rows(connection, select(schedules).order_by(schedules.c.name))
    ]
    lately = (
        select(conversations.c.id, conversations.c.title, conversations.c.created_at)
        .where(conversations.c.data_key.is_not(None), conversations.c.last_seq > 0)
        .order_by(conversations.c.created_at.desc())
        .limit(LATELY)
    )
    return {
        "schedules": found,
        "agents": sorted(agent_names(connection).values()),
        "conversations": rows(connection, lately),
    }


def told(cron: str, timezone: str) -> dict[str, Any]:
    """A cron line in words, and its next times."""
    now, cron = time.time(), spelt_out(cron)
    try:
        words = CronSim(cron, datetime.fromtimestamp(now, ZoneInfo(timezone))).explain()
        following = list(islice(ticks(cron, timezone, now), NEXT))
    except (CronSimError, KeyError, ValueError):
        return {"words": "This line makes no sense.", "next": []}
    return {"words": words, "next": [{"at": at, "words": _moment(at, timezone)} for at in following]}


def _moment(at: float, timezone: str) -> str:
    return datetime.fromtimestamp(at, ZoneInfo(timezone)).strftime("%a %d %b, %H:%M")


@page("owner", form=index)
async def add(request: Request) -> Response:
    """Add one that says something to an agent, or one that makes a job."""
    platform, form = platform_of(request), await form_of(request)
    times = {name: text_of(form, name).strip() for name in ("name", "cron", "missed", "timezone")}
    if not times["name"]:
        raise Malformed("A schedule needs a name.")
    if times["missed"] not in ("skip", "once", "all"):
        raise Malformed("missed: must be skip, once or all.")
    times["timezone"] = times["timezone"] or platform.settings.timezone
    verb = _saying(request, form) if "say" in form else _job(form)
    try:
        await platform.database.write(partial(verb, workspace_id=FIRST_WORKSPACE, **times))
    except IntegrityError:
        raise Conflict(f"There is a schedule {times['name']!r} already. Remove it first.") from None
    return go("/schedules", f"{times['name']} is added.")


def _saying(request: Request, form: FormData) -> Callable[..., str]:
    agent, place = text_of(form, "agent").strip(), text_of(form, "conversation").strip()
    text = text_of(form, "say").strip()
    if not (agent and place and text) or len(text) > LONGEST:
        raise Malformed("Say what to say, to whom and where.")
    saying = scheduled_messages.ScheduledMessage(agent, place, visitor_of(request).member_id, text)
    return partial(scheduled_messages.add_scheduled_message, vault=platform_of(request).vault, saying=saying)


def _job(form: FormData) -> Callable[..., str]:
    kind = text_of(form, "kind").strip()
    if not kind:
        raise Malformed("A schedule needs something to say, or a kind of job to make.")
    try:
        known_kind(kind)
    except ValueError as error:
        raise Malformed(f"kind: {error}.") from None
    return partial(add_job, kind=kind, payload=_payload(text_of(form, "payload")))


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
    here = schedules.c.id == schedule_id
    row_macs.update(connection, schedules, here, {"enabled": enabled, "next_at": following})


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
