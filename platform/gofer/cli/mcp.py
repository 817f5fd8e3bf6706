"""`gofer mcp`: Gofer for other people's agents, and MCP servers for Gofer's agents."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from gofer.cli.client import LONGEST_ANSWER, call, server_client
from gofer.cli.exit_codes import FAILED, USAGE, CommandFailed
from gofer.cli.output import AsJson, Shown, group, plain, show, table

if TYPE_CHECKING:
    from gofer.settings import Settings

app = group("MCP: Gofer for other people's agents, and servers for Gofer's agents.")


Agent = Annotated[str, typer.Argument(help="The agent's name.", show_default=False)]
Server = Annotated[str, typer.Argument(help="The server's name.", show_default=False)]


@app.command("list")
def list_servers(
    agent: Annotated[str, typer.Argument(help="Only of this agent.", show_default=False)] = "",
) -> Shown:
    """List the MCP servers that agents use.

    \b
    gofer mcp list
    gofer mcp list reviewer
    """
    found = call("GET", "/mcp", params={"agent": agent} if agent else {})
    rows = [
        (each["agent"], each["name"], each["where"], " ".join(each["tools"]), each["tier"])
        for each in found["servers"]
    ]
    titles = ("agent", "server", "where", "tools", "tier")
    return found, lambda: table(titles, rows, empty="No agent uses an MCP server.")


@app.command()
def add(
    agent: Agent,
    name: Server,
    command: Annotated[
        list[str] | None, typer.Argument(help="The command and its arguments, after --.", show_default=False)
    ] = None,
    url: Annotated[str, typer.Option(help="The address of a server that speaks streamable HTTP.")] = "",
    bearer: Annotated[str, typer.Option(help="The name of the secret with its token.")] = "",
    secret: Annotated[
        list[str] | None, typer.Option(help="VARIABLE=SECRET, or HEADER=SECRET for a URL. Repeatable.")
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="A tool that may be used. Repeatable.")] = None,
    tier: Annotated[str, typer.Option(help="read, write, exec or network.")] = "",
    host: Annotated[
        list[str] | None, typer.Option(help="A host that the command may reach. Repeatable.")
    ] = None,
    readonly: Annotated[list[str] | None, typer.Option(help="A folder it may read. Repeatable.")] = None,
    oauth: Annotated[bool, typer.Option("--oauth", help="The server wants OAuth.")] = False,
    client_id: Annotated[str, typer.Option(help="For OAuth, if it registers clients by hand.")] = "",
    client_secret: Annotated[str, typer.Option(help="The name of the secret with the client's secret.")] = "",
    trusted: Annotated[bool, typer.Option("--trusted", help="Trust what it answers.")] = False,
) -> Shown:
    """Let an agent use an MCP server. docs/mcp.md has every setting.

    \b
    gofer mcp add gofer linear --url https://mcp.linear.app/mcp --bearer linear_key --tier read
    gofer mcp add gofer tickets --secret TOKEN=tickets_token --host tickets.example.org -- /opt/tickets/mcp --stdio
    """
    words = command or []
    given: dict[str, Any] = {
        "command": words[0] if words else "",
        "args": words[1:],
        "url": url,
        "bearer": bearer,
        "secrets": dict(_pair(each) for each in secret or ()),
        "tools": tool or [],
        "tier": tier,
        "hosts": host or [],
        "readonly": readonly or [],
        "oauth": oauth,
        "client_id": client_id,
        "client_secret": client_secret,
        "trusted": trusted,
    }
    settings = {key: value for key, value in given.items() if value}
    made = call("PUT", f"/agents/{agent}/mcp/{name}", json={"settings": settings})
    return made, f"{agent} uses {name}. Try it: gofer mcp test {agent} {name}"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise CommandFailed(f"{text[:60]!r}: write NAME=SECRET.", USAGE)
    return name, value


@app.command("test")
def try_server(agent: Agent, name: Server, as_json: AsJson = False) -> None:
    """Connect to a server now and list its tools.

    \b
    gofer mcp test gofer linear
    """
    tried = call("POST", f"/agents/{agent}/mcp/{name}/test", json={}, timeout=LONGEST_ANSWER)
    if not tried["ok"] and not as_json:
        raise CommandFailed(tried["problem"], FAILED)
    rows = [(tool["title"], tool["tier"], tool["description"]) for tool in tried["tools"]]

    def in_words() -> None:
        table(("tool", "tier", "what it does"), rows, empty="It offers no tool that may be used.")
        for tool, why in tried["left_out"].items():
            print(f"left out: {plain(tool)}: {plain(why)}")

    show(tried, as_json, in_words)


@app.command()
def authorise(agent: Agent, name: Server) -> Shown:
    """Print the link that authorises Gofer at a server that wants OAuth. Follow it once, signed in as an owner.

    \b
    gofer mcp authorise gofer linear
    """
    begun = call("POST", f"/agents/{agent}/mcp/{name}/authorise", json={})
    return begun, begun["url"] or "It is authorised already."


@app.command()
def remove(agent: Agent, name: Server) -> Shown:
    """Remove a server from an agent's file.

    \b
    gofer mcp remove gofer linear
    """
    return call("DELETE", f"/agents/{agent}/mcp/{name}"), f"{agent} uses {name} no more."


@app.command()
def serve(
    agent: Annotated[str, typer.Option(help="Show only this agent's things, and speak in its name.")] = "",
    role: Annotated[
        str, typer.Option(help="viewer, operator or owner: the most that a caller may do.")
    ] = "operator",
    url: Annotated[str, typer.Option(help="A Gofer elsewhere; its token is in GOFER_TOKEN.")] = "",
    token: Annotated[str, typer.Option(envvar="GOFER_TOKEN", hidden=True)] = "",
) -> None:
    """Serve MCP on stdin and stdout, for an agent on this machine. Calls go to the server that runs here.

    \b
    gofer mcp serve
    gofer mcp serve --agent reviewer --role viewer
    GOFER_TOKEN=gofer_… gofer mcp serve --url https://gofer.example.org
    """
    from gofer.client.models import Role
    from gofer.settings import load_settings

    roles = get_args(Role)
    if role not in roles:
        raise CommandFailed(f"{role[:40]!r} is no role. Choose one of {', '.join(roles)}.", USAGE)
    if url and not token:
        raise CommandFailed("Set GOFER_TOKEN to a token of that server: gofer tokens add NAME", USAGE)
    asyncio.run(_serve(load_settings(), agent=agent, role=role, url=url, token=token))


async def _serve(settings: Settings, *, agent: str, role: str, url: str, token: str) -> None:
    from gofer.client.mcp_api import RemoteApi
    from gofer.client.mcp_server import build_server
    from gofer.client.mcp_stdio import StdioTransport
    from gofer.web.unix_socket import AS_AGENT, AS_ROLE

    headers = {AS_ROLE: role, **({AS_AGENT: agent} if agent else {})}
    async with server_client(settings, url, token, headers) as client:
        api = RemoteApi(client)
        server = build_server(lambda context: api)
        # What anything else prints is no message.
        with contextlib.redirect_stdout(sys.stderr):
            await StdioTransport(0, 1).serve(server)
