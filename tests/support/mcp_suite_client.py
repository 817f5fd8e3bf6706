"""Gofer's MCP client as a command, for the conformance suite: it starts this with the address of a server of its own.

Whatever the server offers is called once, as a run would; an owner's browser is played by following the link.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from gofer.agent.tools.registry import CALL_TOOL
from gofer.errors import GoferError, NotFound
from gofer.mcp.oauth import Authoriser, PendingAuthorisations
from gofer.mcp.servers import McpServers
from gofer.mcp.settings import McpServerSettings, RunServers
from gofer.mcp.tools import FIND_TOOLS
from gofer.settings import Settings
from gofer.store.bootstrap import database_for, seed_workspace
from gofer.tool import Tool, ToolContext
from support.sqlite_template import vault_in, with_tables

CALLBACK = "http://127.0.0.1:3999/mcp/callback"
NAME = "suite"


class Owner:
    """Keeps secrets, and follows links."""

    def __init__(self, pending: PendingAuthorisations) -> None:
        self.secrets: dict[str, str] = {}
        self.authoriser = Authoriser(self.load, self.save, pending, lambda: CALLBACK)

    async def load(self, name: str) -> str:
        try:
            return self.secrets[name]
        except KeyError:
            raise NotFound(name) from None

    async def save(self, name: str, value: str) -> None:
        self.secrets[name] = value

    async def authorise(self, settings: McpServerSettings) -> None:
        link = await self.authoriser.begin(NAME, settings)
        if not link:
            return
        async with httpx2.AsyncClient() as browser:
            back = (await browser.get(link)).headers["location"]
        given = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
        await self.authoriser.finish(given["state"], given["code"], given.get("iss", ""))


def arguments_of(tool: Tool[Any]) -> dict[str, Any]:
    """Something for each argument of a tool."""
    some: dict[Any, Any] = {"number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}
    properties = tool.arguments.model_json_schema().get("properties", {})
    return {
        name: one.get("default", some.get(one.get("type"), "some words"))
        for name, one in properties.items()
        if isinstance(one, dict)
    }


def calls_of(brought: RunServers, wanted: list[dict[str, Any]]) -> list[tuple[Tool[Any], dict[str, Any]]]:
    """The calls that the suite wants made, or one of each tool."""
    tools = {tool.name.removeprefix(f"mcp__{NAME}__"): tool for tool in brought.tools if not is_search(tool)}
    if wanted:
        # A null fits no schema here, and is the same as nothing.
        return [(tools[each["name"]], without_nulls(each["arguments"])) for each in wanted]
    return [(tool, arguments_of(tool)) for tool in tools.values()]


def without_nulls(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def is_search(tool: Tool[Any]) -> bool:
    return tool.name in (FIND_TOOLS, CALL_TOOL)


async def use(hub: McpServers, settings: McpServerSettings, wanted: list[dict[str, Any]]) -> list[str]:
    """Call the tools as a run would; what went wrong."""
    problems: list[str] = []
    async with hub.for_run({NAME: settings}) as brought:
        problems += brought.notes
        for tool, arguments in calls_of(brought, wanted):
            given = tool.arguments.model_validate(arguments)
            try:
                result = await tool.run(given, ToolContext("call_1"))
            except GoferError as error:
                problems.append(str(error))
            else:
                print(tool.name, "answered", result.content[:200].replace("\n", " "))
    return problems


async def main(url: str) -> int:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    oauth = scenario.startswith("auth/")
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        database = database_for(with_tables(Settings(data_dir=data_dir)))
        await database.start()
        try:
            await database.write(seed_workspace)
            owner = Owner(PendingAuthorisations(database, vault_in(data_dir)))
            settings = McpServerSettings(url=url, oauth=oauth, timeout=20, **settings_of(context, owner))
            hub = McpServers(None, owner.load, owner.authoriser.auth)
            wanted = context.get("toolCalls", [])
            problems = await use(hub, settings, wanted)
            for _ in range(
                3
            ):  # a server may want more than it said at first, or move to another place for tokens
                if not any("authorise" in problem for problem in problems):
                    break
                try:
                    await owner.authorise(settings)
                except GoferError as error:
                    print(type(error).__name__, error)
                problems = await use(hub, settings, wanted)
        finally:
            await database.close()
    for problem in problems:
        print("problem:", problem)
    return bool(problems)


def settings_of(context: dict[str, Any], owner: Owner) -> dict[str, Any]:
    """What the suite says beforehand of a client that was registered by hand."""
    if "client_id" not in context:
        return {}
    owner.secrets["suite_client"] = str(context["client_secret"])
    return {"client_id": str(context["client_id"]), "client_secret": "suite_client"}


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
