"""Agents: their files, edited with the same check that a run makes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gofer.errors import Conflict, GoferError, Malformed, NotFound
from gofer.runs.agent_files import NAME, AgentFileError, AgentSpec
from gofer.runs.agent_writer import EXAMPLE, AgentTexts, put_agent, remove_agent
from gofer.web.auth import actor, audited, visitor_of
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import heartbeats
from gofer.web.queries.agents import (
    agent_identity,
    agent_texts,
    agents_directory,
    changing_agents,
    clear_worker_load,
    create_agent,
    list_agents,
    worker_load,
)
from gofer.web.queries.heartbeats import heartbeat_of, mute
from gofer.web.queries.mcp import find_server, list_servers, test_server

MAX_SHOWN = 5
"""Tools of a server that are named after a test."""
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
    servers = await list_servers(platform, name)
    hears = agent["in_force"]
    heartbeat = await heartbeat_of(platform, name) if hears else None
    load = await worker_load(platform, name) if hears else None
    return _form(
        request,
        name,
        shown,
        _stamp(shown),
        hears=hears,
        identity=identity,
        servers=servers,
        heartbeat=heartbeat,
        load=load,
    )


def _stamp(files: AgentTexts) -> str:
    """The version that an edit began from, to notice another edit in between."""
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
    servers: Sequence[dict[str, Any]] = (),
    heartbeat: dict[str, Any] | None = None,
    load: dict[str, Any] | None = None,
) -> Response:
    defaults = AgentSpec(name="default").model_dump(mode="json", exclude={"name", "instructions"})
    return render(
        request, "agent.html", status, name=name, files=files, editable=EDITABLE, stamp=stamp, problem=problem,
        defaults=defaults, hears=hears, identity=identity, servers=servers, heartbeat=heartbeat, load=load,
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


@page("operator")
async def clear(request: Request) -> Response:
    """Let no task wait for a worker, and count anew."""
    platform, name = platform_of(request), request.path_params["name"]
    fresh = text_of(await form_of(request), "fresh") == "yes"
    await clear_worker_load(platform, name, by=actor(request), fresh=fresh)
    return redirect(f"/agents/{name}#workers")


@page("owner")
async def switch(request: Request) -> Response:
    """Switch the heartbeat on or off."""
    name, form = request.path_params["name"], await form_of(request)
    enabled = text_of(form, "enabled") == "yes"
    await heartbeats.switch(request, name, enabled=enabled)
    return redirect(f"/agents/{name}", f"The heartbeat is {'on' if enabled else 'off'}.")


@page("operator")
async def unmute(request: Request) -> Response:
    """Let the heartbeat write in a conversation again."""
    platform, name = platform_of(request), request.path_params["name"]
    form = await form_of(request)
    await mute(platform, name, text_of(form, "conversation"), muted=False, by=actor(request))
    return redirect(f"/agents/{name}", "The heartbeat may write there again.")


@page("operator")
async def try_server(request: Request) -> Response:
    """Connect to an MCP server of the agent, and say what it offers."""
    agent, name = request.path_params["name"], request.path_params["server"]
    tried = await test_server(platform_of(request), agent, name)
    if not tried["ok"]:
        return redirect(f"/agents/{agent}", f"{name} cannot be used: {tried['problem']}")
    tools = [tool["name"] for tool in tried["tools"]]
    more = f" and {len(tools) - MAX_SHOWN} more" if len(tools) > MAX_SHOWN else ""
    left = f" Left out: {', '.join(tried['left_out'])}." if tried["left_out"] else ""
    named = f": {', '.join(tools[:MAX_SHOWN])}{more}" if tools else ""
    return redirect(f"/agents/{agent}", f"{name} works and offers {len(tools)} tools{named}.{left}"[:400])


@page("owner")
async def authorise_server(request: Request) -> Response:
    """Lead an owner to where they authorise Gofer at a server."""
    check_confirmed(request)
    platform, agent, name = platform_of(request), request.path_params["name"], request.path_params["server"]
    url = await platform.authoriser.begin(name, await find_server(platform, agent, name))
    return (
        RedirectResponse(url, 303) if url else redirect(f"/agents/{agent}", f"{name} is authorised already.")
    )


@page("owner")
async def authorised(request: Request) -> Response:
    """An owner comes back from a server that they have authorised Gofer at."""
    given = request.query_params
    if problem := given.get("error"):
        raise Malformed(f"The server refused: {given.get('error_description') or problem}"[:300])
    code, state = given.get("code", ""), given.get("state", "")

    async def finished() -> Response:
        await platform_of(request).authoriser.finish(state[:500], code[:2000], given.get("iss", "")[:500])
        return redirect("/agents", "Gofer is authorised. Its agents use the server from the next run on.")

    # It is asked for by a link; it is a change all the same.
    return await audited(request, visitor_of(request), finished)


@page("owner")
async def create(request: Request) -> Response:
    """Make a folder with files that explain themselves."""
    name = text_of(await form_of(request), "name").strip()
    await create_agent(request, name)
    return redirect(f"/agents/{name}", f"{name} has a folder now. Tell it who it is.")


@page("owner")
async def remove(request: Request) -> Response:
    """Remove the files; the agent keeps its history and hears nothing new."""
    name = request.path_params["name"]
    async with changing_agents(request):
        await asyncio.to_thread(remove_agent, agents_directory(platform_of(request)), name)
    return redirect("/agents", f"The files of {name} are removed.")
