"""`gofer mcp serve`: the library's own client starts it and speaks with it over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from gofer.client import mcp_stdio
from support.command_line import Process, Terminal, environment, gofer
from support.patience import patience


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


def frame(method: str, id_: Any = None, **params: Any) -> bytes:
    """One line of a client."""
    named = {} if id_ is None else {"id": id_}
    return json.dumps({"jsonrpc": "2.0", "method": method, **named, "params": params}).encode() + b"\n"


HELLO = frame(
    "initialize",
    "hello",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "pipe", "version": "1"},
) + frame("notifications/initialized")


def piped(data_dir: Path, said: bytes) -> tuple[int, list[dict[str, Any]]]:
    """What is answered to a file of lines, after which the input ends."""
    command = [sys.executable, "-m", "gofer", "mcp", "serve"]
    done = subprocess.run(
        command, input=said, env=environment(data_dir), capture_output=True, timeout=patience(60)
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_what_was_read_is_answered_after_the_input_has_ended(
    start: Callable[..., Process], data_dir: Path
) -> None:
    start().wait_until_ready()
    wish = {"task": "$ sleep 1; echo after all", "wait": 60}
    calls = [frame("tools/call", number, name="run_agent", arguments=wish) for number in (1, 2)]
    code, answers = piped(data_dir, HELLO + b"".join(calls) + frame("tools/list", 3).rstrip(b"\n"))
    results = {each["id"]: each["result"] for each in answers}
    assert (code, set(results)) == (0, {"hello", 1, 2, 3})
    assert [results[number]["structuredContent"]["state"] for number in (1, 2)] == ["done", "done"]


NO_REQUESTS = {
    b"{": (-32700, None),
    b"\xff\xfe": (-32700, None),
    b'{"jsonrpc": "2.0", "id": 8, "method": "ping", "method": "ping"}': (-32700, None),
    b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}': (-32700, None),
    b"[]": (-32600, None),
    b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]': (-32600, None),
    b'"ping"': (-32600, None),
    b'{"jsonrpc": "2.0", "id": 7}': (-32600, 7),
    b'{"jsonrpc": "1.0", "id": "old", "method": "ping"}': (-32600, "old"),
    b'{"jsonrpc": "2.0", "id": 9, "method": "ping", "params": [1]}': (-32600, 9),
    b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}': (-32600, None),
    b'{"jsonrpc": "2.0", "id": null, "method": "ping"}': (-32600, None),
    b'{"jsonrpc": "2.0", "id": true, "method": "ping"}': (-32600, None),
    b'{"jsonrpc": "2.0", "id": 4, "method": "ping", "params": {"x": "' + b"x" * 1_100_000 + b'"}}': (
        -32600,
        None,
    ),
}


def test_what_is_no_request_is_answered_with_an_error(start: Callable[..., Process], data_dir: Path) -> None:
    start().wait_until_ready()
    code, answers = piped(data_dir, b"\n".join([*NO_REQUESTS, b"", HELLO + frame("ping", "still here")]))
    errors = [(each["error"]["code"], each["id"]) for each in answers if "error" in each]
    assert (code, errors) == (0, list(NO_REQUESTS.values()))
    assert [each["id"] for each in answers if "result" in each] == ["hello", "still here"]
    assert all(each["error"]["message"] for each in answers if "error" in each)


def talk(said: bytes, *, reads: bool = True) -> list[dict[str, Any]]:
    """What a server with a tool that never answers says to lines after which the input ends."""

    async def work() -> list[dict[str, Any]]:
        from mcp.server import Server

        async def hang(*_: Any) -> Any:
            await asyncio.Event().wait()

        theirs, given = os.pipe()
        told, ours = os.pipe()
        os.write(given, said)
        os.close(given)
        if not reads:
            os.close(told)
        async with asyncio.timeout(patience(20)):
            await mcp_stdio.StdioTransport(theirs, ours).serve(Server("hanging", on_call_tool=hang))
        os.close(ours)
        if not reads:
            return []
        with os.fdopen(told, "rb") as output:
            return [json.loads(line) for line in output]

    return asyncio.run(work())


def test_a_call_that_hangs_does_not_keep_the_process_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "LAST_ANSWERS_TIMEOUT", 0.2)
    hello, lost = talk(HELLO + frame("tools/call", 5, name="hang"))
    assert (hello["id"], lost["id"], lost["error"]["message"]) == ("hello", 5, "Connection closed")


def test_a_call_that_was_cancelled_is_not_waited_for() -> None:
    cancelled = frame("tools/call", 5, name="hang") + frame("notifications/cancelled", requestId=5)
    assert [each["id"] for each in talk(HELLO + cancelled)] == ["hello"]


def test_it_ends_when_nobody_reads() -> None:
    assert talk(HELLO + frame("tools/call", 5, name="hang"), reads=False) == []


DOCS = Path(__file__).parents[3] / "docs" / "mcp.md"
Registered = tuple[str, ...] | tuple[str, frozenset[tuple[str, str]]]
"""A command, or an address with its headers."""


def registrations() -> dict[tuple[str, int], str]:
    """What the page says to register Gofer with, by agent and column."""
    table = DOCS.read_text().partition("| Agent |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {
        (row[0].partition(",")[0], column): cell.strip("`")
        for row in rows
        for column, cell in enumerate(row[1:])
        if cell.startswith("`")
    }


def registered(line: str, known: dict[str, str]) -> Registered:
    """How an agent that was given such a line reaches Gofer."""
    for name, value in known.items():
        line = line.replace(name, value)
    if line.startswith("{"):
        return from_settings(json.loads(line)["mcpServers"]["gofer"])
    words = shlex.split(line)
    if words[1] == "--add-mcp":
        settings = json.loads(words[2])
        assert settings.pop("name") == "gofer"
        return from_settings(settings)
    if words[0] == "gofer":
        return tuple(words)
    url = next((word for word in words if "://" in word), "")
    if not url:
        return tuple(words[words.index("--") + 1 :] if "--" in words else words[4:])
    if "--header" not in words:
        bearer = known["$" + words[words.index("--bearer-token-env-var") + 1]]
        return url, frozenset({("Authorization", f"Bearer {bearer}")})
    name, value = re.split("[:=] ?", words[words.index("--header") + 1], maxsplit=1)
    return url, frozenset({(name, value)})


def from_settings(settings: dict[str, Any]) -> Registered:
    """As the agents' own settings name it."""
    if "command" in settings:
        return settings["command"], *settings["args"]
    assert settings.get("type", "http") == "http"
    return settings.get("url") or settings["serverUrl"], frozenset(settings["headers"].items())


async def tools_of(given: Registered, data_dir: Path, token: str) -> set[str]:
    """The tools that a client with such a registration is offered."""
    if isinstance(given[-1], frozenset):
        async with httpx2.AsyncClient(headers=dict(given[-1])) as http:
            transport = streamable_http_client(str(given[0]), http_client=http)
            async with Client(transport) as client:
                return {tool.name for tool in (await client.list_tools()).tools}
    assert given[0] == "gofer"
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", *map(str, given)],
        env={**environment(data_dir), "GOFER_TOKEN": token},
    )
    async with Client(stdio_client(command)) as client:
        return {tool.name for tool in (await client.list_tools()).tools}


def test_agents_that_are_registered_by_the_page_connect(
    start: Callable[..., Process], terminal: Terminal, data_dir: Path
) -> None:
    server = start().wait_until_ready()
    token = terminal.json("tokens", "add", "coder", "--scope", "write")["token"]
    known = {"https://YOUR-GOFER": server.url, "${env:GOFER_TOKEN}": token, "$GOFER_TOKEN": token}
    known["Bearer TOKEN"] = f"Bearer {token}"
    lines = registrations()
    agents = {"Claude Code", "Codex", "Gemini CLI", "opencode", "VS Code", "Cursor", "Windsurf"}
    assert set(lines) >= {(agent, column) for agent in agents for column in (0, 1)}
    ways = {registered(line, known) for line in lines.values()}
    assert len(ways) == 3, ways  # on stdio here, on stdio with a server elsewhere, and over HTTP
    for way in ways:
        assert {"run_agent", "post_message"} <= asyncio.run(tools_of(way, data_dir, token))
