"""`gofer mcp`: Gofer as an MCP server for other people's agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from gofer.cli.exit_codes import TRY_LATER, USAGE, CommandFailed

if TYPE_CHECKING:
    import httpx2

    from gofer.settings import Settings

app = typer.Typer(
    help="MCP: Gofer for other people's agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def mcp() -> None:
    """What may stand before a verb."""


@app.command()
def serve(
    agent: Annotated[str, typer.Option(help="Show what is this agent's alone, and speak in its name.")] = "",
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
    from mcp.server.stdio import stdio_server

    from gofer.client.mcp_tools import build_server

    elsewhere = _elsewhere(url, token) if url else _here(settings, agent, role)
    async with elsewhere as client:
        api = RemoteApi(client)
        server = build_server(lambda context: api)
        async with stdio_server() as (receiving, sending):
            await server.run(receiving, sending, server.create_initialization_options())


@contextlib.asynccontextmanager
async def _here(settings: Settings, agent: str, role: str) -> AsyncIterator[httpx2.AsyncClient]:
    """The API of the server that runs here. Without one nothing would do the work that is asked for."""
    import httpx2

    from gofer.web.unix_socket import AS_AGENT, AS_ROLE, reachable, somebody_listens

    if not somebody_listens(settings.socket_path):
        raise CommandFailed("No server runs here. Start one first: gofer serve", TRY_LATER)
    headers = {AS_ROLE: role, **({AS_AGENT: agent} if agent else {})}
    with reachable(settings.socket_path) as name:
        transport = httpx2.AsyncHTTPTransport(uds=name, verify=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://gofer/api/v1", headers=headers, timeout=60
        ) as client:
            yield client


@contextlib.asynccontextmanager
async def _elsewhere(url: str, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    import httpx2

    headers = {"authorization": f"Bearer {token}"}
    base = f"{url.rstrip('/')}/api/v1"
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
        yield client


class RemoteApi:
    """The API of a server that runs."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str = "",
    ) -> Any:
        """The JSON of an answer; raises Problem."""
        import httpx2

        from gofer.client.mcp_tools import Problem

        wanted = {name: value for name, value in (query or {}).items() if value != ""}
        headers = {"idempotency-key": key} if key else {}
        try:
            response = await self._client.request(method, path, params=wanted, json=body, headers=headers)
            value = response.json()
        except httpx2.TransportError as error:
            unknown = " Whether it was done is not known: look, or repeat it with the same key."
            lost = f"The server went away before it answered ({type(error).__name__})."
            raise Problem(503, "unreachable", lost + (unknown if method != "GET" else "")) from None
        except ValueError:
            raise Problem(
                502, "unreadable", f"The server answered {response.status_code}, not JSON."
            ) from None
        if response.is_error:
            raise Problem(response.status_code, str(value.get("code", "")), str(value.get("detail", "")))
        return value
