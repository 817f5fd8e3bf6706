"""MCP servers of agents: listing, writing, trying and authorising them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError
from starlette.requests import Request

from gofer.errors import ConfigError
from gofer.mcp.settings import McpServerSettings
from gofer.validation import first_error
from gofer.web.api.http import RequestModel, platform_of
from gofer.web.auth import note
from gofer.web.queries.agents import changing_agents
from gofer.web.queries.mcp import find_server, list_servers, put_server, test_server


class ServerFilter(RequestModel):
    """Whose servers to list."""

    agent: str = Field(default="", max_length=100)


class ServerSource(RequestModel):
    """A server to write into an agent's file."""

    settings: dict[str, Any] = Field(description="As in `[mcp.NAME]` of the agent's file.")


async def index(request: Request, query: ServerFilter) -> dict[str, Any]:
    """List the MCP servers that agents' files name."""
    return {"servers": await list_servers(platform_of(request), query.agent)}


async def put(request: Request, source: ServerSource) -> dict[str, Any]:
    """Write a server into its agent's file."""
    agent, name = _which(request)
    try:
        settings = McpServerSettings.model_validate(source.settings)
    except ValidationError as error:
        raise ConfigError(f"{first_error(error)}.") from None
    async with changing_agents(request):
        await put_server(platform_of(request), agent, name, settings)
    return {"agent": agent, "name": name}


async def remove(request: Request) -> dict[str, Any]:
    """Remove a server from its agent's file."""
    agent, name = _which(request)
    async with changing_agents(request):
        await put_server(platform_of(request), agent, name, None)
    return {"agent": agent, "name": name}


async def test(request: Request) -> dict[str, Any]:
    """Connect to a server now and list its tools."""
    answer = await test_server(platform_of(request), *_which(request))
    note(request, ok=answer["ok"], tools=len(answer["tools"]))
    return answer


async def authorise(request: Request) -> dict[str, Any]:
    """Begin an authorisation: the link that an owner follows once."""
    platform, (agent, name) = platform_of(request), _which(request)
    url = await platform.authoriser.begin(name, await find_server(platform, agent, name))
    return {"agent": agent, "name": name, "url": url}


def _which(request: Request) -> tuple[str, str]:
    return request.path_params["agent"], request.path_params["name"]
