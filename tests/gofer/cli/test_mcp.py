"""`gofer mcp serve`: the library's own client starts it and speaks with it over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from support.command_line import Process, Terminal, environment, gofer


def speak(
    data_dir: Path, *options: str, calls: list[tuple[str, dict[str, Any]]]
) -> tuple[list[str], list[Any]]:
    """The tools that are offered, and what each call answers."""

    async def work() -> tuple[list[str], list[Any]]:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "gofer", "mcp", "serve", *options], env=environment(data_dir)
        )
        async with Client(stdio_client(command)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            return names, [(await client.call_tool(*call)).structured_content for call in calls]

    return asyncio.run(work())


def test_an_agent_on_this_machine_works_through_the_server_that_runs(
    start: Callable[..., Process], data_dir: Path
) -> None:
    refused = gofer(data_dir, "mcp", "serve")
    assert (refused.returncode != 0, "gofer serve" in refused.stderr) == (True, True)
    server = start().wait_until_ready()
    names, (done,) = speak(data_dir, calls=[("run_agent", {"task": "Hello.", "wait": 60})])
    assert "post_message" in names
    assert done["state"] == "done"
    names, (jobs, hidden) = speak(
        data_dir,
        *("--role", "viewer", "--agent", "nobody"),
        calls=[("list_jobs", {}), ("get_job", {"job_id": done["id"]})],
    )
    assert "post_message" not in names
    assert (jobs["jobs"], hidden["status"]) == ([], 404)
    assert server.stop() == 0


def test_a_server_elsewhere_is_reached_with_a_token(
    start: Callable[..., Process], terminal: Terminal, data_dir: Path, tmp_path: Path
) -> None:
    server = start().wait_until_ready()
    token = terminal.json("tokens", "add", "coder", "--scope", "write", "--agent", "gofer")
    assert token["agent"] == "gofer"

    async def work() -> Any:
        env = {**environment(tmp_path / "elsewhere"), "GOFER_TOKEN": token["token"]}
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "gofer", "mcp", "serve", "--url", server.url], env=env
        )
        async with Client(stdio_client(command)) as client:
            return (await client.call_tool("list_conversations", {})).structured_content

    assert asyncio.run(work())["conversations"] == []
