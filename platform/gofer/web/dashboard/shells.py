"""Shells: how isolated they are, what they may use and do use, what they hold and last did; closing one."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.jobs.kinds import ANSWER
from gofer.runs.shell_inspection import close_shell, seen, told
from gofer.store.tables import conversations, jobs, shells
from gofer.vault.envelope import Vault
from gofer.web.api.shells import find_shell
from gofer.web.dashboard.endpoints import PER_PAGE, agent_names, page, rows
from gofer.web.dashboard.render import go, platform_of, render
from gofer.web.dashboard.run import opened
from gofer.web.dashboard.trace import cards
from gofer.web.titles import with_titles

LAST_RUNS = 3
"""Runs whose commands the page of a shell shows."""
MOST_EVENTS = 200


@page("viewer")
async def index(request: Request) -> Response:
    """The list, the last used first."""
    platform = platform_of(request)
    found = await platform.database.read(read_list)
    found["shells"] = await with_titles(platform, found["shells"])
    return render(request, "shells.html", **found, sandbox=platform.settings.sandbox)


def read_list(connection: Connection) -> dict[str, Any]:
    """Every shell with what its record says."""
    query = (
        select(shells, conversations.c.title)
        .join(conversations, conversations.c.id == shells.c.conversation_id)
        .order_by(shells.c.used_at.desc())
        .limit(PER_PAGE)
    )
    found = rows(connection, query)
    told_of = [{**each, **told(each.pop("record"))} for each in found]
    return {"shells": told_of, "agents": agent_names(connection)}


@page("viewer")
async def show(request: Request) -> Response:
    """One, with its last commands."""
    platform = platform_of(request)
    found = await platform.database.read(
        partial(
            read_one,
            vault=platform.vault,
            conversation_id=request.path_params["conversation"],
            agent_id=request.path_params["agent"],
        )
    )
    (found["shell"],) = await with_titles(platform, [found["shell"]])
    return render(request, "shell.html", **found)


def read_one(connection: Connection, vault: Vault, conversation_id: str, agent_id: str) -> dict[str, Any]:
    """Everything on the page."""
    row = find_shell(connection, conversation_id, agent_id)
    del row["record"]
    last = (
        select(jobs.c.id, jobs.c.conversation_id)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER, jobs.c.agent_id == agent_id)
        .order_by(jobs.c.id.desc())
        .limit(LAST_RUNS)
    )
    commands = [
        {**card, "job": job["id"]}
        for job in rows(connection, last)
        for card in cards(opened(connection, vault, job, before=None, limit=MOST_EVENTS))[::-1]
        if card["kind"] == "tool" and card["command"]
    ]
    title = select(conversations.c.title).where(conversations.c.id == conversation_id)
    return {
        "shell": {**row, "title": connection.execute(title).scalar() or ""},
        "agents": agent_names(connection),
        "commands": commands[:20],
    }


@page("viewer")
async def inside(request: Request) -> Response:
    """What it uses now and what a directory of it holds; looked at apart, because a large disk takes its time."""
    conversation_id, agent_id = request.path_params["conversation"], request.path_params["agent"]
    row = await platform_of(request).database.read(
        partial(find_shell, conversation_id=conversation_id, agent_id=agent_id)
    )
    inside = await seen(row.pop("record"), request.query_params.get("path", ""))
    template = "shell_inside.html" if "hx-request" in request.headers else "shell_inside_alone.html"
    return render(request, template, shell=row, **inside)


@page("operator")
async def close(request: Request) -> Response:
    """End one: its processes go, its files stay for the next."""
    conversation_id, agent_id = request.path_params["conversation"], request.path_params["agent"]
    await platform_of(request).database.write(
        partial(close_shell, conversation_id=conversation_id, agent_id=agent_id)
    )
    return go("/shells", "Closed. Its processes end within a minute; its files stay.")
