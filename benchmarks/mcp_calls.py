"""MCP both ways: a call of our server and of our client beside the library's own echo, and what it costs those who do
not use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.report import Row
from benchmarks.starting import OURS, Program, measure_in_turns
from gofer.agent.context import text_size
from gofer.agent.tools.registry import Policy, ToolRegistry
from gofer.app import open_app
from gofer.mcp.servers import McpServers
from gofer.mcp.settings import McpServerSettings
from gofer.settings import Settings
from gofer.tool import ToolContext
from gofer.web.app import public_app
from gofer.web.auth.members import first_owner
from gofer.web.auth.sessions import new_token
from gofer.web.mcp import CallLimit, McpEndpoint
from gofer_standins.loopback import serve

GROUP = "mcp_calls"
TOOLS = 100


async def main(quick: bool) -> list[Row]:
    """Calls in turns, so that what disturbs one disturbs the other."""
    # Short rounds: on a machine that others use too, some of many are left alone.
    calls, rounds = (8, 15) if quick else (20, 40)
    async with echo(0) as echo_url, echo(TOOLS) as many_url, gofer() as (url, token):
        ours, theirs, client = await in_turns(calls, rounds, echo_url, url, token)
        tokens, plain = await prompt(many_url)
    rows = [
        Row(GROUP, "a call of /mcp (list_jobs)", ours, "ms", "the library's echo", theirs, at_most=3),
        Row(GROUP, "a call by an agent's tool", client, "ms", "the library's echo", theirs, at_most=3),
        Row(
            GROUP,
            f"prompt for {TOOLS} tools",
            tokens,
            "tokens",
            at_most=2000,
            note=f"{plain:.0f} if all were told",
        ),
    ]
    return [*rows, *await asyncio.to_thread(starting, quick)]


@contextlib.asynccontextmanager
async def echo(tools: int) -> AsyncIterator[str]:
    """The library's own server, in this process as ours is."""
    from mcp.server import MCPServer

    server: MCPServer[Any] = MCPServer("echo", log_level="CRITICAL")

    def say_again(text: str) -> str:
        return text

    def make(size: int, colour: str = "red", label: str = "") -> str:
        return label

    server.add_tool(say_again, name="echo", description="Says it again.")
    for number in range(tools):
        words = f"Makes a thing of the kind {number} and files it."
        server.add_tool(make, name=f"make_thing_{number}", description=words)
    app = server.streamable_http_app(stateless_http=True)
    async with server.session_manager.run(), serve(app) as url:
        yield f"{url}/mcp"


@contextlib.asynccontextmanager
async def gofer() -> AsyncIterator[tuple[str, str]]:
    """An instance with its public app, and a token."""
    folder = Path(tempfile.mkdtemp(prefix="gofer-bench-"))
    try:
        async with open_app(Settings(data_dir=folder, sandbox="off"), roles=frozenset({"web"})) as platform:
            owner = await platform.database.write(first_owner)
            made = await platform.database.write(
                lambda connection: new_token(connection, owner.id, name="bench", scope="admin")
            )
            app = public_app(platform)
            _without_limit(app)
            async with serve(app) as url:
                yield f"{url}/mcp", made[1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_limit(app: Any) -> None:
    """A benchmark calls more often than a token may."""
    for route in app.routes:
        if isinstance(getattr(route, "app", None), McpEndpoint):
            route.app._limit = CallLimit(most=10**9)


async def in_turns(
    calls: int, rounds: int, echo_url: str, url: str, token: str
) -> tuple[float, float, float]:
    """Milliseconds of a call of ours, of the echo, and of the echo through our client: the best round of each."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def nobody(name: str) -> str:
        raise LookupError(name)

    hub = McpServers(None, nobody)
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers) as known,
        Client(streamable_http_client(url, http_client=known)) as ours,
        Client(echo_url) as theirs,
        hub.for_run({"echo": McpServerSettings(url=echo_url)}) as brought,
    ):
        tool, context = brought.tools[0], ToolContext("bench")
        contenders: list[Callable[[], Awaitable[Any]]] = [
            lambda: ours.call_tool("list_jobs", {"limit": 1}),
            lambda: theirs.call_tool("echo", {"text": "hello"}),
            lambda: tool.run(tool.arguments.model_validate({"text": "hello"}), context),
        ]
        found: list[list[float]] = [[], [], []]
        for _ in range(rounds):
            for number, call in enumerate(contenders):
                begun = time.perf_counter()
                for _ in range(calls):
                    await call()
                found[number].append((time.perf_counter() - begun) / calls * 1000)
    best = [min(each) for each in found]
    return best[0], best[1], best[2]


async def prompt(url: str) -> tuple[float, float]:
    """Tokens that a server with many tools adds to the prompt, and what they would be if all were told."""

    async def nobody(name: str) -> str:
        raise LookupError(name)

    hub, settings = McpServers(None, nobody), McpServerSettings(url=url)
    async with hub.for_run({"things": settings}) as brought:
        registry = ToolRegistry(brought.tools)
        told = registry.offered(Policy({"*"}, "owner"))
        every = [
            (tool.name, tool.description, json.dumps(tool.arguments.model_json_schema()))
            for tool in brought.tools
        ]
    return float(sum(text_size(str(spec)) for spec in told)), float(
        sum(text_size(str(each)) for each in every)
    )


def starting(quick: bool) -> list[Row]:
    """A start whose agent names an MCP server, beside one whose agent names none: nothing is loaded for either."""
    rounds, idle = (4, 2.0) if quick else (10, 10.0)

    def with_server(home: Path, port: int) -> list[str]:
        agents = home / "data" / "agents"
        agents.mkdir(parents=True, exist_ok=True)
        (home / "data").chmod(0o700)
        (agents / "gofer.toml").write_text('[mcp.x]\nurl = "http://127.0.0.1:9/mcp"\n')
        return ["env", f"GOFER_DATA_DIR={home / 'data'}", *OURS.command(home, port)]

    def without(home: Path, port: int) -> list[str]:
        return ["env", f"GOFER_DATA_DIR={home / 'data'}", *OURS.command(home, port)]

    found = measure_in_turns(
        [Program("Gofer", with_server, OURS.path), Program("Gofer", without, OURS.path)], rounds, idle
    )
    if isinstance(found, str):
        return [Row(GROUP, "start with a server", 0, "s", note=found)]
    ours, alone = found
    return [
        Row(GROUP, "start with a server", ours.start, "s", "without one", alone.start, at_most=1.1),
        Row(
            GROUP,
            "memory when idle with a server",
            ours.memory,
            "MiB",
            "without one",
            alone.memory,
            at_most=1.05,
        ),
    ]
