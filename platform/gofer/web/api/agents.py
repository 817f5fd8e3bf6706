"""Agents: the files of the data directory, read and written."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gofer.errors import ConfigError, Forbidden
from gofer.runs.agent_files import AgentFileError, AgentSpec
from gofer.runs.agent_writer import AgentTexts, as_toml, put_agent, remove_agent
from gofer.store.bootstrap import FIRST_AGENT
from gofer.web.api.http import ApiAnswer, RequestModel, check_match, etag_of, platform_of
from gofer.web.auth import actor, visitor_of
from gofer.web.queries import heartbeats
from gofer.web.queries.agents import (
    agent_identity,
    agent_texts,
    agents_directory,
    changing_agents,
    check_layered,
    clear_worker_load,
    create_agent,
    list_agents,
    no_agent,
    worker_load,
)
from gofer.web.queries.heartbeats import heartbeat_of, mute

LayerName = Literal["SOUL", "IDENTITY", "USER"]


class AgentSource(RequestModel):
    """The files of an agent to write."""

    toml: str = Field(max_length=100_000)
    instructions: str | None = Field(
        default=None,
        max_length=65_536,
        description="Markdown, kept beside the settings; left as it is when not given.",
    )
    layers: dict[LayerName, str] | None = Field(
        default=None,
        description="Markdown of its other layers, which give it a folder of its own. One that is not given is left "
        "as it is, an empty one is removed. SOUL is for the command line only.",
    )


class AgentName(RequestModel):
    """The name of an agent to make."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")


class HeartbeatSwitch(RequestModel):
    """Whether an agent's heartbeat is on."""

    enabled: bool


class LoadClearing(RequestModel):
    """How to clear an agent's load."""

    fresh: bool = Field(
        default=False,
        description="Begin with a fresh working memory, as after /new; everything stays recallable.",
    )


class HeartbeatMuting(RequestModel):
    """Whether an agent's heartbeat is muted in a conversation."""

    conversation_id: str = Field(min_length=1, max_length=100)
    muted: bool = True


async def index(request: Request) -> dict[str, Any]:
    """List agents: those the store knows, and what their files say."""
    shown = ("name", "model", "file", "in_force", "problem", "default")
    found = await list_agents(platform_of(request))
    return {"agents": [{name: each[name] for name in shown} for each in found.values()]}


async def show(request: Request) -> ApiAnswer:
    """One agent's files, and what they mean."""
    platform, name = platform_of(request), request.path_params["name"]
    files = await agent_texts(platform, name)
    if files is None and name != FIRST_AGENT:
        raise no_agent(name)
    agent = (await list_agents(platform))[name]
    spec = AgentSpec.model_validate(agent["spec"]) if agent["spec"] else AgentSpec(name=name)
    shown = {"name": name, "problem": agent["problem"], "spec": agent["spec"] or spec.model_dump(mode="json")}
    if files is None:
        shown |= {"toml": _built_in(name), "instructions": "", "folder": False, "files": {}}
    else:
        shown |= {"toml": files.toml, "instructions": files.instructions}
        shown |= {"folder": files.folder, "files": dict(files.layers), "spec": agent["spec"]}
    owner = visitor_of(request).may("owner")
    return ApiAnswer(shown | await agent_identity(platform, spec, owner=owner), etag=_tag_of(files))


def _built_in(name: str) -> str:
    """An agent without a file: what would be in one that changes nothing."""
    words = "has no file. This one would change nothing; docs/agents.md has every setting."
    return f"# {name} {words}\n{as_toml(AgentSpec(name=name))}"


async def create(request: Request, given: AgentName) -> ApiAnswer:
    """Make an agent: a folder with files that explain themselves."""
    spec = await create_agent(request, given.name)
    made = {"name": spec.name, "spec": spec.model_dump(mode="json")}
    return ApiAnswer(made, location=f"/agents/{spec.name}")


async def put(request: Request, source: AgentSource) -> ApiAnswer:
    """Write an agent; it is in force from the next run on."""
    platform = platform_of(request)
    name = request.path_params["name"]
    layers: dict[str, str] | None = None if source.layers is None else dict(source.layers.items())
    if layers is not None:
        check_layered(platform)
        if "SOUL" in layers and visitor_of(request).via != "socket":
            raise Forbidden("SOUL is changed by whoever runs Gofer: in its file, or by gofer agents put.")
    try:
        async with changing_agents(request):
            await _check(request, name)
            spec = await asyncio.to_thread(
                put_agent,
                agents_directory(platform),
                name,
                source.toml,
                source.instructions,
                layers,
            )
            etag = await _etag(request, name)
    except AgentFileError as error:
        raise ConfigError(f"line {error.line}: {error.message}") from None
    return ApiAnswer({"name": spec.name, "spec": spec.model_dump(mode="json")}, etag=etag)


async def heartbeat(request: Request) -> dict[str, Any]:
    """An agent's heartbeat: its settings and list, what it found lately, and where it is muted."""
    return await heartbeat_of(platform_of(request), request.path_params["name"])


async def switch(request: Request, given: HeartbeatSwitch) -> dict[str, Any]:
    """Switch an agent's heartbeat on or off, in its file; in force from the next look on."""
    return await heartbeats.switch(request, request.path_params["name"], enabled=given.enabled)


async def load(request: Request) -> dict[str, Any]:
    """What an agent's workers have to do, and whether it is too much."""
    return await worker_load(platform_of(request), request.path_params["name"])


async def clear(request: Request, given: LoadClearing) -> dict[str, Any]:
    """Let no task of an agent wait for a worker, and count anew."""
    platform, name = platform_of(request), request.path_params["name"]
    return await clear_worker_load(platform, name, by=actor(request), fresh=given.fresh)


async def mute_heartbeat(request: Request, given: HeartbeatMuting) -> dict[str, Any]:
    """Mute an agent's heartbeat in a conversation, or let it write there again."""
    platform, name = platform_of(request), request.path_params["name"]
    await mute(platform, name, given.conversation_id, muted=given.muted, by=actor(request))
    return await heartbeat_of(platform, name)


async def _check(request: Request, name: str) -> None:
    if "if-match" in request.headers:
        check_match(request, await _etag(request, name))


async def _etag(request: Request, name: str) -> str:
    return _tag_of(await agent_texts(platform_of(request), name))


def _tag_of(files: AgentTexts | None) -> str:
    return etag_of() if files is None else etag_of(files.toml, files.instructions, *files.layers.values())


async def remove(request: Request) -> dict[str, Any]:
    """Remove an agent's files."""
    name = request.path_params["name"]
    async with changing_agents(request):
        await _check(request, name)
        await asyncio.to_thread(remove_agent, agents_directory(platform_of(request)), name)
    return {"name": name}
