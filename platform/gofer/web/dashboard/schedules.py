"""Schedules: what they say in words, when they run next, and running one now."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, select
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.inflow import SCHEDULABLE
from gofer.errors import Malformed
from gofer.intake import scheduled_messages
from gofer.store.tables import conversations
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, readable, visitor_of
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import agent_names, rows, schedules
from gofer.web.queries.jobs import wake
from gofer.web.titles import with_titles

RECENT_CONVERSATIONS = 50
"""Conversations to choose from, the newest; any other by its own page's address."""


@page("viewer")
async def index(request: Request) -> Response:
    """The list, and a form for another."""
    platform = platform_of(request)
    visitor = visitor_of(request)
    found = await platform.database.read(read_list, vault=platform.vault, visitor=visitor)
    found["conversations"] = await with_titles(platform, found["conversations"], visitor, by="id")
    return render(request, "schedules.html", **found, timezone=platform.settings.timezone, kinds=SCHEDULABLE)


def read_list(connection: Connection, vault: Vault, visitor: Visitor) -> dict[str, Any]:
    """Every schedule in words, and whom another could speak to, and where."""
    lately = (
        select(conversations.c.id, conversations.c.title, conversations.c.created_at)
        .where(conversations.c.data_key.is_not(None), conversations.c.last_seq > 0)
        .where(readable(connection, visitor))
        .order_by(conversations.c.created_at.desc())
        .limit(RECENT_CONVERSATIONS)
    )
    return {
        "schedules": [_with_outlook(row) for row in schedules.list_schedules(connection, vault, visitor)],
        "agents": sorted(agent_names(connection).values()),
        "conversations": rows(connection, lately),
    }


def _with_outlook(row: dict[str, Any]) -> dict[str, Any]:
    upcoming, words = schedules.outlook(row)
    moments = [datetime.fromtimestamp(at, ZoneInfo(row["timezone"])) for at in upcoming]
    following = [{"at": at.timestamp(), "words": at.strftime("%a %d %b, %H:%M")} for at in moments]
    return {**row, "words": words, "next": following}


@page("owner", form=index)
async def add(request: Request) -> Response:
    """Add one that says something to an agent, or one that makes a job."""
    platform, form = platform_of(request), await form_of(request)
    times = {name: text_of(form, name).strip() for name in ("name", "cron", "missed", "timezone")}
    if not times["name"]:
        raise Malformed("A schedule needs a name.")
    if times["missed"] not in ("skip", "once", "all"):
        raise Malformed("missed: must be skip, once or all.")
    verb = _saying(request, form) if "say" in form else _job(form)
    await schedules.add(platform, verb, **times)
    return redirect("/schedules", f"{times['name']} is added.")


def _saying(request: Request, form: FormData) -> Callable[..., str]:
    agent, place = text_of(form, "agent").strip(), text_of(form, "conversation").strip()
    text = text_of(form, "say").strip()
    if not (agent and place and text) or len(text) > schedules.MAX_TEXT:
        raise Malformed("Say what to say, to whom and where.")
    saying = scheduled_messages.ScheduledMessage(agent, place, visitor_of(request).member_id, text)
    return partial(
        scheduled_messages.add_scheduled_message, vault=platform_of(request).vault, scheduled=saying
    )


def _job(form: FormData) -> Callable[..., str]:
    kind = text_of(form, "kind").strip()
    if not kind:
        raise Malformed("A schedule needs something to say, or a kind of job to make.")
    try:
        schedules.known_kind(kind)
    except ValueError as error:
        raise Malformed(f"kind: {error}.") from None
    return partial(schedules.add_job, kind=kind, payload=_payload(text_of(form, "payload")))


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
    """Run a schedule once now, beside its regular times."""
    platform = platform_of(request)
    job_id = await platform.database.write(schedules.run_schedule, named=request.path_params["id"])
    wake(platform)
    return redirect(f"/runs/{job_id}", "Begun.")


@page("owner")
async def switch(request: Request) -> Response:
    """On or off."""
    form = await form_of(request)
    enabled = text_of(form, "enabled") == "on"
    await platform_of(request).database.write(_switch, named=request.path_params["id"], enabled=enabled)
    return redirect("/schedules", "Switched on." if enabled else "Switched off.")


def _switch(connection: Connection, named: str, enabled: bool) -> None:
    row = schedules.find_schedule(connection, named, to_change=True)
    schedules.change_schedule(connection, row, {"enabled": enabled})


@page("owner")
async def remove(request: Request) -> Response:
    """Remove one."""
    name = await platform_of(request).database.write(_remove, named=request.path_params["id"])
    return redirect("/schedules", f"{name} is removed.")


def _remove(connection: Connection, named: str) -> str:
    row = schedules.find_schedule(connection, named, to_change=True)
    schedules.remove_schedule(connection, row)
    return str(row["name"])
