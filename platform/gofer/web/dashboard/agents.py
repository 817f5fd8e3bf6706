"""Agents: their files, edited with the same check that a run makes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, GoferError, NotFound
from gofer.runs.agent_files import NAME, AgentFileError, AgentSpec
from gofer.runs.agent_writer import EXAMPLE, AgentTexts, new_agent, put_agent, remove_agent
from gofer.web.auth import visitor_of
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries.agents import (
    agent_identity,
    agent_texts,
    agents_directory,
    changing_agents,
    check_layered,
    list_agents,
)

EDITABLE = ("IDENTITY", "USER")
"""The layers of a folder that an owner changes here; SOUL is changed in its file."""


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
        return _form(request, "", AgentTexts(EXAMPLE, ""), "")
    agent = (await list_agents(platform)).get(name)
    if agent is None:
        raise NotFound(f"There is no agent called {name[:40]!r}.")
    files = await agent_texts(platform, name)
    spec = AgentSpec.model_validate(agent["spec"]) if agent["spec"] else AgentSpec(name=name)
    identity = await agent_identity(platform, spec, owner=visitor_of(request).may("owner"))
    shown = files or AgentTexts(EXAMPLE, "")
    return _form(request, name, shown, _stamp(shown), hears=agent["in_force"], identity=identity)


def _stamp(files: AgentTexts) -> str:
    """What an edit began from; another one in between is noticed by it."""
    texts = (files.toml, files.instructions, *files.layers.values())
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _form(
    request: Request,
    name: str,
    files: AgentTexts,
    stamp: str,
    problem: str = "",
    status: int = 200,
    *,
    hears: bool = False,
    identity: dict[str, Any] | None = None,
) -> Response:
    defaults = AgentSpec(name="default").model_dump(mode="json", exclude={"name", "instructions"})
    return render(
        request, "agent.html", status, name=name, files=files, editable=EDITABLE, stamp=stamp, problem=problem,
        defaults=defaults, hears=hears, identity=identity,
    )  # fmt: skip


@page("owner")
async def save(request: Request) -> Response:
    """Write the files, unless they make no sense or somebody else has changed them meanwhile."""
    form = await form_of(request)
    name, stamp = text_of(form, "name").strip(), text_of(form, "stamp")
    given = _given(form)
    platform = platform_of(request)
    try:
        async with changing_agents(request):
            there = await agent_texts(platform, name)
            if there is not None and _stamp(there) != stamp:
                raise Conflict(
                    "The files were changed meanwhile. Copy your text, load the page again, and merge."
                )
            kept = (
                given.instructions
                if given.instructions or (there is not None and there.instructions)
                else None
            )
            layers = dict(given.layers) if there is not None and there.folder else None
            await asyncio.to_thread(
                put_agent, agents_directory(platform), name, f"{given.toml}\n", kept, layers
            )
    except AgentFileError as error:
        return _form(request, name, given, stamp, f"Line {error.line}: {error.message}", 400)
    except GoferError as error:
        return _form(request, name, given, stamp, str(error), 409)
    return redirect(f"/agents/{name}", "Saved. In force from the next run on.")


def _given(form: Any) -> AgentTexts:
    """What somebody typed."""
    layers = {layer: text_of(form, layer) for layer in EDITABLE if layer in form}
    plain = {layer: text.strip() for layer, text in layers.items()}
    return AgentTexts(
        text_of(form, "toml").strip(),
        text_of(form, "notes").strip(),
        {layer: f"{text}\n" if text else "" for layer, text in plain.items()},
        folder=bool(layers),
    )


@page("owner")
async def create(request: Request) -> Response:
    """Make a folder with files that explain themselves."""
    platform, form = platform_of(request), await form_of(request)
    check_layered(platform)
    name = text_of(form, "name").strip()
    async with changing_agents(request):
        await asyncio.to_thread(new_agent, agents_directory(platform), name)
    return redirect(f"/agents/{name}", f"{name} has a folder now. Tell it who it is.")


@page("owner")
async def remove(request: Request) -> Response:
    """Remove the files; the agent keeps its history and hears nothing new."""
    name = request.path_params["name"]
    async with changing_agents(request):
        await asyncio.to_thread(remove_agent, agents_directory(platform_of(request)), name)
    return redirect("/agents", f"The files of {name} are removed.")
