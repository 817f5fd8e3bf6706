"""Agents: their files, edited with the same check that a run makes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, GoferError, NotFound
from gofer.runs.agent_files import (
    NAME,
    AgentFileError,
    AgentFiles,
    AgentSpec,
    default_agent,
    in_force,
    put_agent,
    remove_agent,
    texts,
)
from gofer.store.tables import LIVE, agents, in_state, jobs
from gofer.web.dashboard.endpoints import form_of, page, rows, text_of
from gofer.web.dashboard.render import go, platform_of, render

EXAMPLE = """# Every field is explained in docs/agents.md. What is left out has its default.
model = "auto"
tools = ["*"]

[limits]
job_dollars = 1.0
day_dollars = 10.0

# Without a route it answers where it is chosen: /agent NAME, or the page of a connection.
# [[routes]]
# connection = "telegram"
# trigger = "mention"
"""


@page("viewer")
async def index(request: Request) -> Response:
    """Every agent that has a file or a history."""
    stored = await platform_of(request).database.read(_stored)
    looked = await asyncio.to_thread(AgentFiles(_directory(request)).look)
    specs, files = in_force(looked), _files(looked)
    heard, default = {spec.name for spec in specs}, default_agent(specs)
    names = sorted({*files, *stored, *heard})
    told = [
        {
            "name": name,
            "hears": name in heard,
            "default": name == default,
            **(stored.get(name) or _NEW),
            **(files.get(name) or _NO_FILE),
        }
        for name in names
    ]
    return render(request, "agents.html", agents=told)


_NEW: dict[str, Any] = {"stored_model": "", "live": 0}
_NO_FILE: dict[str, Any] = {"file": False, "stray": False, "problem": "", "spec": None}


def _stored(connection: Connection) -> dict[str, dict[str, Any]]:
    counted = select(jobs.c.agent_id, func.count()).where(in_state(*LIVE)).group_by(jobs.c.agent_id)
    live = {agent: int(count) for agent, count in connection.execute(counted)}
    found = rows(connection, select(agents.c.id, agents.c.name, agents.c.model))
    return {each["name"]: {"stored_model": each["model"], "live": live.get(each["id"], 0)} for each in found}


def _directory(request: Request) -> Path:
    return platform_of(request).settings.data_dir / "agents"


def _files(looked: Mapping[str, tuple[AgentSpec | None, str]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "file": True,
            "stray": not NAME.fullmatch(name),
            "problem": problem,
            "spec": None if spec is None else spec.model_dump(mode="json"),
        }
        for name, (spec, problem) in looked.items()
    }


@page("viewer")
async def show(request: Request) -> Response:
    """One's files, in a form."""
    name = request.path_params["name"]
    if name == "new":
        return _form(request, "", EXAMPLE, "", "")
    toml, notes = await asyncio.to_thread(_texts, _directory(request), name)
    if toml is None:
        stored = await platform_of(request).database.read(_stored)
        if name not in stored:
            raise NotFound(f"There is no agent called {name[:40]!r}.")
        toml = EXAMPLE
    hears = in_force(await asyncio.to_thread(AgentFiles(_directory(request)).look))
    return _form(request, name, toml, notes, _stamp(toml, notes), hears=name in {spec.name for spec in hears})


def _texts(directory: Path, name: str) -> tuple[str | None, str]:
    path = directory / f"{name}.toml"
    if not NAME.fullmatch(name) or not path.is_file():
        return None, ""
    return texts(path)


def _stamp(toml: str | None, notes: str) -> str:
    """What an edit began from; another one in between is noticed by it."""
    return hashlib.sha256(f"{toml}\0{notes}".encode()).hexdigest() if toml is not None else ""


def _form(
    request: Request,
    name: str,
    toml: str,
    notes: str,
    stamp: str,
    problem: str = "",
    status: int = 200,
    *,
    hears: bool = False,
) -> Response:
    defaults = AgentSpec(name="default").model_dump(mode="json", exclude={"name", "instructions"})
    return render(
        request, "agent.html", status, name=name, toml=toml, notes=notes, stamp=stamp, problem=problem,
        defaults=defaults, hears=hears,
    )  # fmt: skip


@page("owner")
async def save(request: Request) -> Response:
    """Write the files, unless they make no sense or somebody else has changed them meanwhile."""
    form = await form_of(request)
    name, toml, notes = (text_of(form, field).strip() for field in ("name", "toml", "notes"))
    stamp = text_of(form, "stamp")
    there = await asyncio.to_thread(_texts, _directory(request), name)
    try:
        if there[0] is not None and _stamp(*there) != stamp:
            raise Conflict(
                "The files were changed meanwhile. Copy your text, load the page again, and merge."
            )
        kept = notes if notes or there[1] else None
        await asyncio.to_thread(put_agent, _directory(request), name, f"{toml}\n", kept)
        await platform_of(request).agents_changed()
    except AgentFileError as error:
        return _form(request, name, toml, notes, stamp, f"Line {error.line}: {error.message}", 400)
    except GoferError as error:
        return _form(request, name, toml, notes, stamp, str(error), 409)
    return go(f"/agents/{name}", "Saved. In force from the next run on.")


@page("owner")
async def remove(request: Request) -> Response:
    """Remove the files; the agent keeps its history and hears nothing new."""
    name = request.path_params["name"]
    await asyncio.to_thread(remove_agent, _directory(request), name)
    await platform_of(request).agents_changed()
    return go("/agents", f"The files of {name} are removed.")
