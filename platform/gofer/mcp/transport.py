"""The two ways to an MCP server: HTTP through a client that is bounded and goes nowhere else, and a program in a
sandbox of its own whose stdin and stdout are pipes."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shlex
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import structlog

from gofer.agent.tools.fetch import may_be_fetched, resolve
from gofer.errors import GoferError, Permanent, Temporary
from gofer.mcp.settings import McpServerSettings
from gofer_sandbox import Limits, Provider, Sandbox, SandboxError
from gofer_sandbox.network import Egress

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = structlog.get_logger()

MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of one answer of a server, or of one line of a program."""
MAX_TALK = 16 * MAX_ANSWER
"""Bytes that a program may say in the course of one run."""
EgressTo = Callable[[Sequence[str]], Egress]
"""The network of a sandbox, as far as hosts are named."""
FOREVER = 30 * 86400.0
STREAM_BUFFER = 16
E = TypeVar("E", bound=GoferError)


def in_our_words(name: str, error: BaseException) -> GoferError:
    """An error of the library, however nested, in our words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, GoferError):
        return error
    words = " ".join(str(error).split())[:300]
    told = Temporary(f"{name}: {words or type(error).__name__}", reason="mcp.unavailable")
    return repeating(told) if words else told


def repeating(error: E) -> E:
    """The error, marked: it repeats words of the server."""
    error.repeats_others = True
    return error


class OnlyThere(httpx2.AsyncBaseTransport):
    """Sends requests to public addresses, and to the one host that the agent's file names; an answer is bounded.

    A name is resolved once, and the connection goes to an address that was checked.
    """

    def __init__(self, url: str, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._host = (urlsplit(url).hostname or "").lower()
        self._inner = inner or httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One request. A redirect is not followed here, and the library follows none to another host."""
        response = await self._inner.handle_async_request(await self._pinned(request))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)
        return response

    async def _pinned(self, request: httpx2.Request) -> httpx2.Request:
        """The request to an address. A new one: the same may be sent again, with a token, and keeps its name."""
        url = request.url
        try:
            found = await resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"The name {url.host} could not be found.") from error
        if not found or (url.host.lower() != self._host and not all(map(may_be_fetched, found))):
            raise httpx2.ConnectError(f"{url.host} is not a public address, so it is not called.")
        if _is_address(url.host):
            return request
        address = found[0]
        host = f"[{address}]" if address.version == 6 else str(address)
        headers = httpx2.Headers(request.headers)
        headers.setdefault("host", url.netloc.decode("ascii"))
        return httpx2.Request(
            request.method,
            url.copy_with(host=host),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": url.host},
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class _Bounded(httpx2.AsyncByteStream):
    """An answer that breaks off when it is too long."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_ANSWER:
                raise httpx2.StreamError(f"The answer is longer than {MAX_ANSWER} bytes.")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(
    settings: McpServerSettings, headers: Mapping[str, str], auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """A client for one server."""
    return httpx2.AsyncClient(
        transport=OnlyThere(settings.url),
        headers={**settings.headers, **headers},
        auth=auth,
        timeout=httpx2.Timeout(settings.timeout, connect=settings.start_timeout),
        follow_redirects=False,
        trust_env=False,
    )


SCRIPT = (
    '( while IFS= read -r line && [ -n "$line" ]; do export "$line"; done; cd /workspace && exec {command} ) '
    "< {given} > {said}"
)
"""Secrets come as the first lines of what is given, so that no argument and no file holds them."""


class SandboxedProgram:
    """A program in a sandbox of its own, which ends with it and with us. Its stdin and stdout are FIFOs in the
    workspace that were opened here before anything ran inside."""

    def __init__(
        self,
        provider: Provider,
        settings: McpServerSettings,
        secrets: Mapping[str, str],
        egress: EgressTo,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._gate = egress(settings.hosts) if settings.hosts else None
        self._sandbox = Sandbox(
            provider,
            limits=Limits(),
            environment=settings.env,
            readonly=settings.readonly,
            gate=self._gate,
            survives=False,
        )
        self._open: list[int] = []
        self.problem = ""
        """Why it ended by itself, with what it printed last."""
        self._printed = ""

    def why_so_slow(self) -> str:
        """What may keep it from starting, for whoever waits."""
        words = " ".join(self._printed.split())
        told = f" It printed: {words}" if words else ""
        return told + ("" if self._settings.hosts else " It has no network: `hosts` names what it may reach.")

    def _print(self, stream: int, data: bytes) -> None:
        self._printed = (self._printed + data.decode("utf-8", "replace"))[-300:]

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[TransportStreams]:
        """Start it; the streams are what the library speaks through."""
        try:
            await self._sandbox.start()
        except SandboxError as error:
            raise Permanent(f"No sandbox can be had for it: {error}") from error
        try:
            given, said = self._pipe("given"), self._pipe("said")
            command = shlex.join([self._settings.command, *self._settings.args])
            script = SCRIPT.format(command=command, given=given, said=said)
            running = asyncio.create_task(self._sandbox.run(script, FOREVER, on_output=self._print))
            try:
                async with self._streams(running) as streams:
                    yield streams
            finally:
                running.cancel()
                await asyncio.wait({running})
        finally:
            for fd in self._open:
                os.close(fd)
            await self._sandbox.close()

    def _pipe(self, name: str) -> str:
        """A FIFO that the program's user may open; its path inside. Nothing has run in there yet."""
        path = self._sandbox.workspace / f".mcp-{name}"
        os.mkfifo(path, 0o600)
        if os.geteuid() == 0:
            owner = self._sandbox.workspace.stat()
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        # Both ways: so that it opens at once, and neither side sees an end when the other is not there yet.
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._open.append(fd)
        assert stat.S_ISFIFO(os.fstat(fd).st_mode)
        return f"/workspace/{path.name}"

    @contextlib.asynccontextmanager
    async def _streams(self, running: asyncio.Task[Any]) -> AsyncIterator[TransportStreams]:
        import anyio
        from mcp.shared.message import SessionMessage

        to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](STREAM_BUFFER)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](STREAM_BUFFER)
        given, said = self._open
        await write_all(
            given, "".join(f"{name}={value}\n" for name, value in self._secrets.items()).encode() + b"\n"
        )

        async def read() -> None:
            try:
                await _read_messages(said, to_client, running)
            except (Temporary, Permanent) as error:
                self.problem = str(error)
                log.info("mcp.program_ended", command=self._settings.command, error=self.problem)
            finally:
                to_client.close()

        async def write() -> None:
            async for message in from_client:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await write_all(given, text.encode() + b"\n")

        tasks = [asyncio.create_task(read()), asyncio.create_task(write())]
        try:
            yield incoming, outgoing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (to_client, incoming, outgoing, from_client):
                stream.close()


async def _read_messages(fd: int, to: Any, running: asyncio.Task[Any]) -> None:
    """Pass on what the program says until it ends. What is no message is not for us: some print what they do."""
    import mcp_types as types
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

    buffer, size, told = bytearray(), 0, False
    while not running.done():
        chunk = await _read_some(fd, running)
        buffer += chunk
        size += len(chunk)
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, ValueError):
                if not told and line.strip():
                    told = True
                    log.info("mcp.printed", line=line[:200].decode("utf-8", "replace"))
                continue
            await to.send(SessionMessage(message))
        if len(buffer) > MAX_ANSWER or size > MAX_TALK:
            raise Permanent("The server says more than can be taken in.")
    result = None if running.cancelled() else running.result()
    words = result.output[-500:] if result is not None else ""
    ended = Temporary(f"The server ended. {words}".strip())
    raise repeating(ended) if words else ended


async def _read_some(fd: int, running: asyncio.Task[Any]) -> bytes:
    """Something that can be read, or nothing when the program has ended."""
    while True:
        try:
            return os.read(fd, 65536)
        except BlockingIOError:
            await _until(fd, running, write=False)
            if running.done():
                with contextlib.suppress(BlockingIOError):
                    return os.read(fd, 65536)
                return b""


async def write_all(fd: int, data: bytes) -> None:
    """Write to a pipe that may be full."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await _until(fd, None, write=True)


async def _until(fd: int, running: asyncio.Task[Any] | None, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def done(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if write else loop.add_reader)(fd, done)
    if running is not None:
        running.add_done_callback(done)
    try:
        await ready
    finally:
        (loop.remove_writer if write else loop.remove_reader)(fd)
        if running is not None:
            running.remove_done_callback(done)


class CleanedStream:
    """What a server says, with each list of tools cleaned: the library would give up a whole list for one bad tool, and
    would check results by a pattern of the server's own, which may take hours."""

    def __init__(self, inner: Any, dropped: dict[str, str]) -> None:
        self._inner = inner
        self._dropped = dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def receive(self) -> Any:
        return self._clean(await self._inner.receive())

    def __aiter__(self) -> CleanedStream:
        return self

    async def __anext__(self) -> Any:
        return self._clean(await self._inner.__anext__())

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> CleanedStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)

    def _clean(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            result["tools"] = [tool for tool in result["tools"][:MAX_LISTED] if self._is_one(tool)]
        return item

    def _is_one(self, tool: Any) -> bool:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            return False
        schema = tool.get("inputSchema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            self._dropped[tool["name"][:80]] = "its arguments are no object"
            return False
        kept = {key: tool[key] for key in ("name", "inputSchema", "description", "title") if key in tool}
        tool.clear()
        tool.update({key: value for key, value in kept.items() if key in _REQUIRED or isinstance(value, str)})
        return True


MAX_LISTED = 5000
_REQUIRED = frozenset({"name", "inputSchema"})


@contextlib.asynccontextmanager
async def cleaned(transport: Any, dropped: dict[str, str]) -> AsyncIterator[TransportStreams]:
    """A transport whose lists of tools are cleaned; what was dropped from them is noted."""
    async with transport as (incoming, outgoing):
        yield CleanedStream(incoming, dropped), outgoing
