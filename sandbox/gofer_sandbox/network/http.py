"""HTTP/1.1 over asyncio streams: h11 reads the protocol, this counts the bytes and keeps the time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import TypeAlias

import h11

from gofer_sandbox.network.caller import Ends
from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.limits import EgressLimits, Meter

BLOCK = 64 * 1024
Headers: TypeAlias = list[tuple[bytes, bytes]]

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"expect",
}  # fmt: skip


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
        return Ends(theirs, ours)

    async def receive(self, patience: float | None = None) -> h11.Event | None:
        """The next event, None when there is none in this cycle; Refused for what is not HTTP."""
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
            async with asyncio.timeout(patience or self.limits.idle_seconds):
                data = await self.reader.read(BLOCK)
            self.meter.count(len(data))
            self.http.receive_data(data)

    def _malformed(self, error: h11.RemoteProtocolError) -> Exception:
        if self.http.our_role is h11.SERVER and self.reader.at_eof():
            return BodyCutOff()
        if self.http.our_role is h11.CLIENT:
            # Not the error's own words: they quote the answer, in which the credential may come back.
            return Refused("the upstream's answer is not valid HTTP", status=502)
        return Refused(f"not valid HTTP: {error}", status=error.error_status_hint)

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
    """How the body's length is told to the upstream; Refused where the request tells it twice."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" not in names:
        return []
    if b"content-length" in names:
        raise Refused("a request with two lengths", status=400)
    return [(b"transfer-encoding", b"chunked")]


async def relay_body(source: Peer, sink: Peer) -> None:
    """Pass a body on as it comes, to its end; what was read of it before is somebody else's."""
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


async def drain(peer: Peer, limit: int, patience: float) -> None:
    """Read away a body, so that closing does not reset the connection before the answer was read."""
    try:
        async with asyncio.timeout(patience):
            while limit > 0 and peer.http.their_state in (h11.IDLE, h11.SEND_BODY):
                event = await peer.receive()
                limit -= len(event.data) if isinstance(event, h11.Data) else 0
    except (OSError, TimeoutError, Refused):
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
