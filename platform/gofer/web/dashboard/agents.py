"""Agents: their files, edited with the same check that a run makes."""

from __future__ import annotations

import asyncio
import hashlib

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, GoferError, NotFound
from gofer.runs.agent_files import NAME, AgentFileError, AgentSpec, put_agent, remove_agent
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries.agents import agent_texts, agents_directory, changing_agents, list_agents

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
    found = await list_agents(platform_of(request))
    shown = [{**each, "stray": each["file"] and not NAME.fullmatch(each["name"])} for each in found.values()]
    return render(request, "agents.html", agents=shown)


@page("viewer")
async def show(request: Request) -> Response:
    """One's files, in a form."""
    platform, name = platform_of(request), request.path_params["name"]
    if name == "new":
        return _form(request, "", EXAMPLE, "", "")
    agent = (await list_agents(platform)).get(name)
    if agent is None:
        raise NotFound(f"There is no agent called {name[:40]!r}.")
    toml, notes = await agent_texts(platform, name) or (EXAMPLE, "")
    return _form(request, name, toml, notes, _stamp(toml, notes), hears=agent["in_force"])


def _stamp(toml: str, notes: str) -> str:
    """What an edit began from; another one in between is noticed by it."""
    return hashlib.sha256(f"{toml}\0{notes}".encode()).hexdigest()


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
    platform = platform_of(request)
    try:
        async with changing_agents(request):
            there = await agent_texts(platform, name)
            if there is not None and _stamp(*there) != stamp:
                raise Conflict(
                    "The files were changed meanwhile. Copy your text, load the page again, and merge."
                )
            kept = notes if notes or (there is not None and there[1]) else None
            await asyncio.to_thread(put_agent, agents_directory(platform), name, f"{toml}\n", kept)
    except AgentFileError as error:
        return _form(request, name, toml, notes, stamp, f"Line {error.line}: {error.message}", 400)
    except GoferError as error:
        return _form(request, name, toml, notes, stamp, str(error), 409)
    return redirect(f"/agents/{name}", "Saved. In force from the next run on.")


@page("owner")
async def remove(request: Request) -> Response:
    """Remove the files; the agent keeps its history and hears nothing new."""
    name = request.path_params["name"]
    async with changing_agents(request):
        await asyncio.to_thread(remove_agent, agents_directory(platform_of(request)), name)
    return redirect("/agents", f"The files of {name} are removed.")
