"""HTTP/1.1 over asyncio streams: h11 reads the protocol, this counts the bytes and keeps the time, so that one sandbox
can ask only so much of the proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import h11

from gofer_sandbox.network.caller import Ends
from gofer_sandbox.network.errors import ProxyRefused

BLOCK = 64 * 1024
Headers: TypeAlias = list[tuple[bytes, bytes]]

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"expect",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Bounds of one sandbox's traffic. Sizes are in bytes and times in seconds."""

    connections: int = 64
    """At once, through each of the two proxies; further ones wait."""
    connection_bytes: int = 4 * 1024**3
    total_bytes: int = 32 * 1024**3
    header_bytes: int = 32 * 1024
    header_seconds: float = 15.0
    connect_seconds: float = 15.0
    idle_seconds: float = 120.0
    connection_seconds: float = 3600.0


class Meter:
    """Counts bytes in both directions against a limit, and against a wider meter's."""

    def __init__(self, limit: int, wider: Meter | None = None) -> None:
        self._left = limit
        self._limit = limit
        self._wider = wider

    def count(self, size: int) -> None:
        """Refused once the limit is passed."""
        self._left -= size
        if self._left < 0:
            raise ProxyRefused(f"more than {self._limit} bytes were moved")
        if self._wider is not None:
            self._wider.count(size)


class BodyCutOff(ConnectionError):
    """One side went away before its body was complete."""


class Peer:
    """One side of an HTTP conversation: the program in the sandbox, or the upstream."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        meter: Meter,
        limits: EgressLimits,
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=limits.header_bytes)
        self.reader = reader
        self.writer = writer
        self.meter = meter
        self.limits = limits

    @property
    def ends(self) -> Ends:
        """The other side's address and port, and ours."""
        # Nobody's, when it hung up before it was looked at.
        given = (self.writer.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        theirs, ours = ((str(address), int(port)) for address, port, *_ in given)
        return theirs, ours

    async def receive(self, timeout: float | None = None) -> h11.Event | None:
        """The next event, None when there is none in this cycle; ProxyRefused for what is not HTTP."""
        while True:
            try:
                event = self.http.next_event()
            except h11.RemoteProtocolError as error:
                raise self._malformed(error) from None
            if event is h11.PAUSED:
                return None
            if isinstance(event, h11.Event):
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            async with asyncio.timeout(timeout or self.limits.idle_seconds):
                data = await self.reader.read(BLOCK)
            self.meter.count(len(data))
            self.http.receive_data(data)

    def _malformed(self, error: h11.RemoteProtocolError) -> Exception:
        if self.http.our_role is h11.SERVER and self.reader.at_eof():
            return BodyCutOff()
        if self.http.our_role is h11.CLIENT:
            # Not the error's own words: they quote the answer, in which the credential may come back.
            return ProxyRefused("the upstream's answer is not valid HTTP", status=502)
        return ProxyRefused(f"not valid HTTP: {error}", status=error.error_status_hint)

    async def send(self, *events: h11.Event) -> None:
        """Write events out; waits while the other side is slow, but not for ever."""
        for event in events:
            data = self.http.send(event)
            if data:
                self.writer.write(data)
        async with asyncio.timeout(self.limits.idle_seconds):
            await self.writer.drain()

    async def close(self) -> None:
        """Close, whatever state the other side is in."""
        self.writer.close()
        try:
            async with asyncio.timeout(1):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.writer.transport.abort()


def end_to_end(headers: Iterable[tuple[bytes, bytes]], *dropped: bytes) -> Headers:
    """Headers without those that speak of one connection only, and without the named ones."""
    listed = [(bytes(name), bytes(value)) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in listed
        if name == b"connection"
        for token in value.split(b",")
    }
    unwanted = _HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in listed if name not in unwanted]


def framing(request: h11.Request) -> Headers:
    """How the body's length is told to the upstream; ProxyRefused where the request tells it twice."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" not in names:
        return []
    if b"content-length" in names:
        raise ProxyRefused("a request with two lengths", status=400)
    return [(b"transfer-encoding", b"chunked")]


async def relay_body(source: Peer, sink: Peer, early: bytes = b"") -> None:
    """Pass a body on as it comes, to its end, after what was read of it before."""
    if early:
        await sink.send(h11.Data(data=early))
    if source.http.their_state is h11.DONE:
        await sink.send(h11.EndOfMessage())
        return
    while True:
        event = await source.receive()
        if isinstance(event, h11.Data):
            await sink.send(h11.Data(data=bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            await sink.send(h11.EndOfMessage())
            return
        else:
            raise BodyCutOff


async def relay_answer(client: Peer, upstream: Peer, response: h11.Response, *dropped: bytes) -> None:
    """Pass an upstream's answer on as it comes, without the named headers."""
    headers = end_to_end(response.headers, *dropped)
    await client.send(h11.Response(status_code=response.status_code, headers=headers, reason=response.reason))
    await relay_body(upstream, client)


async def read_body(peer: Peer, limit: int) -> bytes:
    """The rest of a body; ProxyRefused where it is longer than the limit."""
    body = bytearray()
    while isinstance(event := await peer.receive(), h11.Data):
        body += event.data
        if len(body) > limit:
            raise ProxyRefused("the body is too long to be checked", status=413)
    if not isinstance(event, h11.EndOfMessage):
        raise BodyCutOff
    return bytes(body)


async def drain(peer: Peer, limit: int, timeout: float) -> None:
    """Read away a body, so that closing does not reset the connection before the answer was read."""
    try:
        async with asyncio.timeout(timeout):
            while limit > 0 and peer.http.their_state in (h11.IDLE, h11.SEND_BODY):
                event = await peer.receive()
                limit -= len(event.data) if isinstance(event, h11.Data) else 0
    except (OSError, TimeoutError, ProxyRefused):
        return


async def answer(peer: Peer, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
    """An answer of our own, the last on its connection; nothing where one was already begun."""
    if peer.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    await peer.send(
        h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )


async def exchange(
    client: Peer,
    upstream: Peer,
    head: h11.Request,
    respond: Callable[[Peer, Peer, h11.Response], Awaitable[None]],
    early: bytes = b"",
) -> None:
    """Send head and body while waiting for the answer, which may come before the body has gone. `respond` passes the
    answer on, given the client and the upstream; `early` is what was read of the body before."""

    async def receive() -> None:
        await respond(client, upstream, await receive_head(upstream))

    await upstream.send(head)
    upload = asyncio.ensure_future(relay_body(client, upstream, early))
    download = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
        # An upstream that stops reading may still have answered; a client that goes away wants no answer.
        if upload.done() and isinstance(
            error := upload.exception(), ProxyRefused | TimeoutError | BodyCutOff
        ):
            raise error
        await download
    finally:
        for task in (upload, download):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(upload, download, return_exceptions=True)


async def receive_head(upstream: Peer) -> h11.Response:
    """The head of an upstream's answer."""
    while isinstance(event := await upstream.receive(), h11.InformationalResponse):
        pass
    if not isinstance(event, h11.Response):
        raise ProxyRefused("the upstream closed without an answer", status=502)
    return event


def request_head(method: bytes, target: str, host: str, headers: Headers) -> h11.Request:
    """A request for an upstream, on a connection of its own."""
    return h11.Request(
        method=method,
        target=target,
        headers=[(b"host", host.encode()), (b"connection", b"close"), *headers],
    )


class UnderWay:
    """Requests that are under way, each with the host and port it goes to, and can be cut off."""

    def __init__(self, reason: str) -> None:
        """`reason` is what the program is told whose request is cut off."""
        self._reason = reason
        self._requests: dict[asyncio.Timeout, tuple[str, int]] = {}
        self._quiet = asyncio.Event()

    @asynccontextmanager
    async def hold(self, host: str, port: int) -> AsyncIterator[None]:
        """Hold one request for the length of the block."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._requests[deadline] = (host, port)
                yield
        except TimeoutError:
            if deadline.expired():
                raise ProxyRefused(self._reason) from None
            raise
        finally:
            self._requests.pop(deadline, None)
            if not self._requests:
                self._quiet.set()

    def cut(self, allowed: Callable[[str, int], bool]) -> None:
        """End those that go to what is not allowed any more."""
        for deadline, place in self._requests.items():
            if not allowed(*place):
                deadline.reschedule(asyncio.get_running_loop().time())

    async def cut_all(self) -> None:
        """End everything and wait until it has ended."""
        self._quiet.clear()
        self.cut(lambda host, port: False)
        if self._requests:
            await self._quiet.wait()
