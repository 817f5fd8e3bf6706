"""The MCP servers of an agent, for the length of a run: connected when a tool needs them, given up when they fail.

A server that dies, hangs or lies costs its own calls, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from gofer.agent.transcript import plain, quoted
from gofer.client.mcp_server import load_library
from gofer.errors import ConfigError, GoferError, NotFound, Permanent, Temporary
from gofer.mcp.settings import McpServerSettings, RunServers
from gofer.mcp.tools import ServerTool, ToolList, as_tool, fits_prompt, look_at, search_tools
from gofer.mcp.transport import EgressTo, SandboxedProgram, cleaned, http_client, in_our_words, repeating
from gofer.tool import Tier, Tool, ToolContext
from gofer_sandbox import Provider
from gofer_sandbox.network import Egress

if TYPE_CHECKING:
    import httpx2
    import mcp_types
    from mcp import Client

log = structlog.get_logger()

LIST_TTL = 600.0
"""Seconds for which a server's list of tools is believed; a list that changed is read again at once."""
FAILURE_TTL = 60.0
"""Seconds for which a server that could not be reached is left alone."""
MAX_PROBLEM = 500
"""Characters that a prompt has of why a server cannot be used: the server may have written them."""
MAX_PAGES = 20
CLOSE_TIMEOUT = 5.0
LIST_CHANGED = (
    "(The server's tools have changed. This run keeps those that it began with; the next has the new ones.)"
)
UNKNOWN = "Whether it was done is not known: look before you do it again."

Secrets = Callable[[str], Awaitable[str]]
"""A secret of the workspace by its name; raises NotFound."""
Authorisation = Callable[[str, McpServerSettings], "httpx2.Auth"]
"""What signs the requests to a server that wants OAuth."""


@dataclass(slots=True)
class ServerNotes:
    """What was noted of a server while a run was connected with it."""

    forget: Callable[[], None]
    """Called when its list of tools is no longer to be believed."""
    keep: Callable[[ToolList], None]
    """Called with a list that was just read."""
    offered: ToolList | None = None
    """What the run has of it."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Tools that were dropped from its list, with the reason."""
    auth: httpx2.Auth | None = None
    program: SandboxedProgram | None = None
    untold: bool = False
    """Whether its list has changed, and the run was not told so yet."""

    def list_changed(self) -> None:
        """It said that its tools are others now: the next run has them, and this one is told."""
        self.forget()
        self.untold = True


class McpConnection:
    """A connection to one server, in a task of its own: the library wants to be left where it was entered."""

    def __init__(
        self,
        name: str,
        settings: McpServerSettings,
        notes: ServerNotes,
        opened: Callable[[ServerNotes], Any],
    ) -> None:
        self.notes = notes
        self._name = name
        self._settings = settings
        self._opened = opened
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._turn = asyncio.Lock()

    async def client(self) -> Client:
        """The client, connected; raises Temporary or Permanent."""
        async with self._turn:
            if self._client is not None and self._task is not None and not self._task.done():
                return self._client
            await self._close()
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._live(ready), name=f"mcp-{self._name}")
            try:
                async with asyncio.timeout(self._settings.start_timeout):
                    self._client = await asyncio.shield(ready)
            except TimeoutError:
                why = self.notes.program.why_so_slow() if self.notes.program is not None else ""
                await self._close()
                raise Temporary(
                    f"{self._name} did not start within {self._settings.start_timeout:g} seconds.{why}"
                ) from None
            except BaseException:
                await self._close()
                raise
            return self._client

    async def _live(self, ready: asyncio.Future[Client]) -> None:
        try:
            async with self._opened(self.notes) as client:
                if not ready.done():
                    ready.set_result(client)
                await self._stop.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a group of whatever the library or the server raised
            told = in_our_words(self._name, error)
            if not ready.done():
                ready.set_exception(told)
            else:
                log.info("mcp.ended", server=self._name, error=str(told))
        finally:
            self._client = None
            if not ready.done():
                ready.cancel()

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext, tier: Tier
    ) -> mcp_types.CallToolResult:
        """Call a tool. An error after it was sent says that the outcome is not known, unless the tool only reads."""
        from mcp.shared.exceptions import MCPError

        client = await self.client()
        unknown = "" if tier is Tier.READ else f" {UNKNOWN}"

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if message and context.on_output is not None:
                context.on_output(f"{message[:500]}\n")

        task = self._task
        assert task is not None
        calling = asyncio.ensure_future(client.call_tool(tool, arguments, progress_callback=report))
        calling.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            limit = min(self._settings.timeout, context.seconds_left)
            await asyncio.wait({calling, task}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return calling.result()
            if task.done():
                raise Permanent(f"{self._name} ended while it worked on this.{unknown}")
            await self.close()  # what hangs once is started anew for the next call
            raise Permanent(f"{self._name} did not answer within {limit:g} seconds.{unknown}")
        except MCPError as error:
            lost = error.code in _LOST
            if lost:
                await self.close()  # the next call begins anew
                if (refusal := getattr(self.notes.auth, "refusal", None)) is not None:
                    raise refusal from None
            elif error.code in _UNKNOWN_TOOL:
                self.notes.forget()
            told = f"{self._name}: {error.message[:500]}." + (unknown if lost else "")
            raise repeating(Permanent(told)) from None
        except (RuntimeError, ValueError, OSError) as error:
            told = f"{self._name}: {type(error).__name__}: {str(error)[:500]}{unknown}"
            raise repeating(Permanent(told)) from None
        finally:
            if not calling.done():
                calling.cancel()

    async def list(self, settings: McpServerSettings) -> ToolList:
        """What the server offers, page by page and no further than is sensible."""
        client = await self.client()
        found: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(settings.start_timeout):
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            await self.close()
            raise Temporary(f"{self._name} did not list its tools in time.") from None
        except Exception as error:  # noqa: BLE001 - whatever a stranger's list breaks
            raise in_our_words(self._name, error) from None
        looked = await asyncio.to_thread(look_at, self._name, settings, found)
        dropped = {name: why for name, why in self.notes.dropped.items() if settings.allows(name)}
        return replace(looked, left_out={**dropped, **looked.left_out})

    async def remark(self) -> str:
        """What to tell a run whose server said that its tools have changed. Some say so whenever they start: nothing
        is told if the list is the same."""
        if not self.notes.untold:
            return ""
        self.notes.untold = False
        try:
            found = await self.list(self._settings)
        except GoferError:
            return LIST_CHANGED
        self.notes.keep(found)
        return "" if found == self.notes.offered else LIST_CHANGED

    async def close(self) -> None:
        """End it; never raises, and waits no longer than a moment."""
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is None:
            return
        self._stop.set()
        await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
        if task.done() and not task.cancelled():
            task.exception()


_LOST = frozenset({-32000, -32001, -32700, -32600, -32603})
"""Codes with which the library says that an answer did not come, or could not be read."""
_UNKNOWN_TOOL = frozenset({-32601, -32602})
"""Codes with which a server says that it knows no such tool, or not with these arguments."""


@dataclass(slots=True)
class _Known:
    """A server's list of tools, or why there is none, and until when that is believed."""

    until: float
    tools: ToolList | None = None
    problem: str = ""


@dataclass(slots=True)
class McpServers:
    """Connects runs with their agents' servers."""

    provider: Provider | None
    """Where commands run; None where there is no sandbox."""
    secrets: Secrets
    authorisation: Authorisation | None = None
    egress: EgressTo = Egress
    _known: dict[tuple[str, McpServerSettingsKey], _Known] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def for_run(self, servers: Mapping[str, McpServerSettings]) -> AsyncIterator[RunServers]:
        """The tools of an agent's servers. What was connected ends with the block."""
        connections = {name: self._connection(name, settings) for name, settings in servers.items()}
        try:
            lists = await asyncio.gather(
                *(self._listed(name, settings, connections[name]) for name, settings in servers.items())
            )
            for connection, known in zip(connections.values(), lists, strict=True):
                connection.notes.offered = known.tools
            yield _brought(servers, connections, dict(zip(servers, lists, strict=True)))
        finally:
            await asyncio.gather(*(each.close() for each in connections.values()))

    async def test(self, name: str, settings: McpServerSettings) -> tuple[ToolList, float]:
        """Connect to a server now and list its tools; returns them and the seconds it took. Raises GoferError."""
        begun = time.monotonic()
        connection = self._connection(name, settings)
        try:
            found = await connection.list(settings)
        finally:
            await connection.close()
        self._keep(name, settings, found)
        return found, time.monotonic() - begun

    async def _listed(self, name: str, settings: McpServerSettings, connection: McpConnection) -> _Known:
        key = name, _key(settings)
        known = self._known.get(key)
        if known is not None and known.until > time.monotonic():
            return known
        try:
            known = _Known(time.monotonic() + LIST_TTL, await connection.list(settings))
        except GoferError as error:
            log.warning("mcp.unavailable", server=name, error=str(error))
            # What an owner sets right, a secret or an authorisation, counts from the next run on.
            kept = 0.0 if isinstance(error, ConfigError) else FAILURE_TTL
            known = _Known(time.monotonic() + kept, problem=str(error))
        else:
            for tool, why in known.tools.left_out.items() if known.tools is not None else ():
                log.warning("mcp.tool_left_out", server=name, tool=tool, reason=why)
        self._known = {kept: one for kept, one in self._known.items() if one.until > time.monotonic()}
        self._known[key] = known
        return known

    def _forget(self, name: str, settings: McpServerSettings) -> None:
        self._known.pop((name, _key(settings)), None)

    def _keep(self, name: str, settings: McpServerSettings, found: ToolList) -> None:
        self._known[name, _key(settings)] = _Known(time.monotonic() + LIST_TTL, found)

    def _connection(self, name: str, settings: McpServerSettings) -> McpConnection:
        notes = ServerNotes(partial(self._forget, name, settings), partial(self._keep, name, settings))
        return McpConnection(name, settings, notes, lambda notes: self._open(name, settings, notes))

    @contextlib.asynccontextmanager
    async def _open(
        self, name: str, settings: McpServerSettings, notes: ServerNotes
    ) -> AsyncIterator[Client]:
        await asyncio.to_thread(load_library)
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        async def on_message(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                notes.list_changed()

        given = await self._given(settings)
        if settings.command:
            if self.provider is None:
                raise Permanent(
                    "There is no sandbox here, so no command is run. `gofer doctor` says what is missing."
                )
            program = notes.program = SandboxedProgram(self.provider, settings, given, self.egress)
            try:
                streams = cleaned(program.connect(), notes.dropped)
                async with Client(streams, message_handler=on_message) as client, _listening(client, notes):
                    yield client
            except Exception as error:
                if not program.problem:
                    raise
                told = Temporary(f"{name}: {program.problem}", reason="mcp.unavailable")
                raise repeating(told) from error
            return
        if settings.oauth and self.authorisation is None:
            raise ConfigError("There is no way to authorise here.")
        notes.auth = self.authorisation(name, settings) if settings.oauth and self.authorisation else None
        async with http_client(settings, given, notes.auth) as http:
            streams = cleaned(streamable_http_client(settings.url, http_client=http), notes.dropped)
            async with Client(streams, message_handler=on_message) as client, _listening(client, notes):
                yield client

    async def _given(self, settings: McpServerSettings) -> dict[str, str]:
        """The secrets of a server, as variables or as headers."""
        found = {}
        wanted = {**settings.secrets, **({"authorization": settings.bearer} if settings.bearer else {})}
        for place, name in wanted.items():
            try:
                value = await self.secrets(name)
            except NotFound:
                raise ConfigError(f"There is no secret {name}. Set it: gofer secrets put {name}") from None
            if any(character in value for character in "\r\n\x00"):
                raise ConfigError(f"The secret {name} has a line break and cannot be given to a server.")
            found[place] = (
                f"Bearer {value}" if place == "authorization" and name == settings.bearer else value
            )
        return found


@contextlib.asynccontextmanager
async def _listening(client: Client, notes: ServerNotes) -> AsyncIterator[None]:
    """Hear of changes of the tools. Since 2026-07-28 a server tells only those who ask."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    tools = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        yield
        return
    task = asyncio.create_task(_listen(client, notes), name="mcp-listen")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _listen(client: Client, notes: ServerNotes) -> None:
    try:
        async with client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                notes.list_changed()
    except Exception as error:  # noqa: BLE001 - whatever a stranger's server makes the library raise
        log.info("mcp.not_listening", error=f"{type(error).__name__}: {str(error)[:200]}")
    notes.forget()  # nobody would tell us from now on


McpServerSettingsKey = str


def _key(settings: McpServerSettings) -> McpServerSettingsKey:
    return settings.model_dump_json()


def _brought(
    servers: Mapping[str, McpServerSettings],
    connections: Mapping[str, McpConnection],
    lists: Mapping[str, _Known],
) -> RunServers:
    offered: list[ServerTool] = []
    notes: list[str] = []
    for name, known in lists.items():
        if known.tools is None:
            why = quoted(plain(known.problem[:MAX_PROBLEM]))
            notes.append(f"The MCP server {name} cannot be used now:\n{why}")
        else:
            offered += known.tools.tools
    every = tuple({tool.title: tool for tool in offered}.values())
    hidden = not fits_prompt(every)
    tools: list[Tool[Any]] = [
        as_tool(
            tool,
            servers[tool.server],
            _caller(connections[tool.server], servers[tool.server]),
            connections[tool.server].remark,
            hidden=hidden,
        )
        for tool in every
    ]
    return RunServers((*tools, *(search_tools(every) if hidden else ())), tuple(notes))


def _caller(connection: McpConnection, settings: McpServerSettings) -> Any:
    async def call(tool: str, arguments: dict[str, Any], context: ToolContext) -> mcp_types.CallToolResult:
        return await connection.call(tool, arguments, context, settings.tier_of(tool))

    return call
