"""Agents: the files of the data directory, read and written."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import ConfigError, NotFound
from gofer.runs.agent_files import AgentFileError, AgentSpec, as_toml, put_agent, remove_agent
from gofer.store.bootstrap import FIRST_AGENT
from gofer.web.api.http import RequestModel, check_match, etag_of, json_response, parse_body, platform_of
from gofer.web.queries.agents import agent_texts, agents_directory, changing_agents, list_agents


class AgentSource(RequestModel):
    """An agent to write."""

    toml: str = Field(max_length=100_000)
    instructions: str | None = Field(
        default=None,
        max_length=500_000,
        description="Markdown, kept beside the settings; left as it is when not given.",
    )


async def index(request: Request) -> Response:
    """List agents: those the store knows, and what their files say."""
    shown = ("name", "model", "file", "in_force", "problem", "default")
    found = await list_agents(platform_of(request))
    return json_response(
        request, {"agents": [{name: each[name] for name in shown} for each in found.values()]}
    )


async def show(request: Request) -> Response:
    """One agent's files, and what they mean."""
    platform, name = platform_of(request), request.path_params["name"]
    files = await agent_texts(platform, name)
    if files is None and name == FIRST_AGENT:
        return json_response(request, _built_in(name), etag=etag_of())
    if files is None:
        raise NotFound(f"There is no agent called {name[:40]!r}. `gofer agents list` shows those there are.")
    toml, instructions = files
    agent = (await list_agents(platform))[name]
    shown = {"name": name, "toml": toml, "instructions": instructions}
    shown |= {"spec": agent["spec"], "problem": agent["problem"]}
    return json_response(request, shown, etag=etag_of(toml, instructions))


def _built_in(name: str) -> dict[str, Any]:
    """An agent without a file: what would be in one that changes nothing."""
    spec = AgentSpec(name=name)
    toml = f"# {name} has no file. This one would change nothing; docs/agents.md has every setting.\n{as_toml(spec)}"
    return {
        "name": name,
        "toml": toml,
        "instructions": "",
        "problem": "",
        "spec": spec.model_dump(mode="json"),
    }


async def put(request: Request) -> Response:
    """Write an agent; it is in force from the next run on."""
    platform, source = platform_of(request), await parse_body(request, AgentSource)
    name = request.path_params["name"]
    try:
        async with changing_agents(request):
            await _check(request, name)
            spec = await asyncio.to_thread(
                put_agent, agents_directory(platform), name, source.toml, source.instructions
            )
            etag = await _etag(request, name)
    except AgentFileError as error:
        raise ConfigError(f"line {error.line}: {error.message}") from None
    return json_response(request, {"name": spec.name, "spec": spec.model_dump(mode="json")}, etag=etag)


async def _check(request: Request, name: str) -> None:
    if "if-match" in request.headers:
        check_match(request, await _etag(request, name))


async def _etag(request: Request, name: str) -> str:
    return etag_of(*(await agent_texts(platform_of(request), name) or ()))


async def remove(request: Request) -> Response:
    """Remove an agent's files."""
    name = request.path_params["name"]
    async with changing_agents(request):
        await _check(request, name)
        await asyncio.to_thread(remove_agent, agents_directory(platform_of(request)), name)
    return json_response(request, {"name": name})
