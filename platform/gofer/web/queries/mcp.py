"""MCP servers of agents: those their files name, and trying one."""

from __future__ import annotations

import asyncio
from typing import Any

from gofer.app import Platform
from gofer.errors import ConfigError, GoferError, NotFound
from gofer.mcp.settings import SERVER, McpServerSettings, with_table, without_table
from gofer.runs.agent_files import AgentFileError, AgentSpec
from gofer.runs.agent_writer import put_agent
from gofer.store.bootstrap import FIRST_AGENT
from gofer.web.queries.agents import agent_texts, agents_directory, list_agents, no_agent


async def list_servers(platform: Platform, agent: str = "") -> list[dict[str, Any]]:
    """Every server that an agent's file names, or those of one agent; raises NotFound for an unknown agent."""
    found = await list_agents(platform)
    if agent and agent not in found:
        raise no_agent(agent)
    return [
        {
            "agent": each["name"],
            "name": name,
            "kind": "url" if server["url"] else "command",
            "where": server["url"] or " ".join([server["command"], *server["args"]]),
            "tools": list(server["tools"]),
            "tier": server["tier"],
            "trusted": server["trusted"],
            "oauth": server["oauth"],
        }
        for each in found.values()
        if each["spec"] is not None and agent in ("", each["name"])
        for name, server in sorted(each["spec"]["mcp"].items())
    ]


async def find_server(platform: Platform, agent: str, name: str) -> McpServerSettings:
    """A server as its agent's file has it; raises NotFound."""
    found = (await list_agents(platform)).get(agent)
    if found is None:
        raise no_agent(agent)
    spec = AgentSpec.model_validate(found["spec"]) if found["spec"] else AgentSpec(name=agent)
    if name not in spec.mcp:
        raise NotFound(f"{agent} has no MCP server {name[:40]!r}. `gofer mcp list` shows those there are.")
    return spec.mcp[name]


async def test_server(platform: Platform, agent: str, name: str) -> dict[str, Any]:
    """Connect to a server now; what it offers, or why it cannot be used."""
    settings = await find_server(platform, agent, name)
    answer: dict[str, Any] = {"agent": agent, "name": name, "ok": True, "problem": "", "seconds": 0.0}
    try:
        found, seconds = await platform.servers.test(name, settings)
    except GoferError as error:
        return {**answer, "ok": False, "problem": str(error), "tools": [], "left_out": {}}
    tools = [
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "tier": str(settings.tier_of(tool.name)),
        }
        for tool in found.tools
    ]
    return {**answer, "seconds": round(seconds, 3), "tools": tools, "left_out": dict(found.left_out)}


async def put_server(platform: Platform, agent: str, name: str, settings: McpServerSettings | None) -> None:
    """Write a server into its agent's file, or remove it; the caller holds the turn of the files."""
    if not SERVER.fullmatch(name):
        raise ConfigError("A server's name has a-z, 0-9 and -, 20 characters at most.")
    files = await agent_texts(platform, agent)
    if files is None and agent != FIRST_AGENT:
        raise no_agent(agent)
    if settings is None:
        await find_server(platform, agent, name)
    before = files.toml if files is not None else ""
    text = without_table(before, name) if settings is None else with_table(before, name, settings)
    try:
        await asyncio.to_thread(put_agent, agents_directory(platform), agent, text, None)
    except AgentFileError as error:
        raise ConfigError(f"line {error.line}: {error.message}") from None
