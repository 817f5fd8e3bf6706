"""Shells: how isolated they are, what they may use and do use, what they hold and last did; closing one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.jobs.kinds import ANSWER
from gofer.runs.shell_inspection import seen
from gofer.web.auth import Visitor, record_reading, visitor_of
from gofer.web.dashboard.endpoints import PER_PAGE, page
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.dashboard.trace import cards
from gofer.web.queries.jobs import events_of, list_jobs
from gofer.web.queries.shells import end_shell, find_shell, list_shells
from gofer.web.titles import with_titles

LAST_RUNS = 3
"""Runs whose commands the page of a shell shows."""
MAX_EVENTS = 200


@page("viewer")
async def index(request: Request) -> Response:
    """The list, the last used first."""
    platform = platform_of(request)
    found = await platform.database.read(list_shells, limit=PER_PAGE)
    found = await with_titles(platform, found, visitor_of(request))
    return render(request, "shells.html", shells=found, sandbox=platform.settings.sandbox)


@page("viewer")
async def show(request: Request) -> Response:
    """One, with its last commands."""
    platform, visitor = platform_of(request), visitor_of(request)
    conversation_id, agent = request.path_params["conversation"], request.path_params["agent"]
    found = await platform.database.read(
        _read, platform=platform, conversation_id=conversation_id, agent=agent, visitor=visitor
    )
    await record_reading(request, conversation_id)
    (found["shell"],) = await with_titles(platform, [found["shell"]], visitor)
    return render(request, "shell.html", **found)


def _read(
    connection: Connection, platform: Platform, conversation_id: str, agent: str, visitor: Visitor
) -> dict[str, Any]:
    """Everything on the page."""
    row, _ = find_shell(connection, conversation_id, agent, visitor)
    last = list_jobs(
        connection, kind=ANSWER, conversation_id=conversation_id, agent_id=row["agent_id"], limit=LAST_RUNS
    )
    commands = [
        {**card, "job": job["id"]}
        for job in last
        for card in cards(events_of(connection, platform, job["id"], limit=MAX_EVENTS))[::-1]
        if card["kind"] == "tool" and card["command"]
    ]
    return {"shell": row, "commands": commands[:20]}


@page("viewer")
async def inside(request: Request) -> Response:
    """What a shell uses now and what a directory holds; loaded apart, because a large disk takes time."""
    conversation_id, agent = request.path_params["conversation"], request.path_params["agent"]
    row, record = await platform_of(request).database.read(
        find_shell, conversation_id=conversation_id, agent=agent, visitor=visitor_of(request)
    )
    inside = await seen(record, request.query_params.get("path", ""))
    template = "shell_inside.html" if "hx-request" in request.headers else "shell_inside_alone.html"
    return render(request, template, shell=row, **inside)


@page("operator")
async def close(request: Request) -> Response:
    """End one: its processes go, its files stay for the next."""
    conversation_id, agent = request.path_params["conversation"], request.path_params["agent"]
    await platform_of(request).database.write(end_shell, conversation_id=conversation_id, agent=agent)
    return redirect("/shells", "Closed. Its processes end within a minute; its files stay.")
