"""The forward proxy: CONNECT and plain requests to allowed hosts."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11

from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.dial import Dialer
from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.exchange import closing, exchange, request_head
from gofer_sandbox.network.http import BLOCK, Peer, end_to_end, framing, relay_body
from gofer_sandbox.network.rules import AllowedHost, host_name

NOT_ALLOWED = "this sandbox may not reach this host and port"


class ForwardProxy:
    """Serves requests that name their host, one at a time per connection."""

    name = "forward"

    def __init__(self, hosts: Sequence[AllowedHost], dialer: Dialer) -> None:
        self._hosts = tuple(hosts)
        self._callers: Callers | None = None
        self._why = NOT_ALLOWED
        self._dialer = dialer
        self._under_way: dict[asyncio.Timeout, tuple[str, int]] = {}

    def allow(self, hosts: Sequence[AllowedHost], callers: Callers | None, why: str) -> None:
        """From now on, these hosts and no others, to certain programs if they are given. What is under way to a host
        that is closed now is cut off."""
        self._hosts, self._callers, self._why = tuple(hosts), callers, why or NOT_ALLOWED
        for deadline, (host, port) in self._under_way.items():
            if not any(allowed.matches(host, port) for allowed in self._hosts):
                deadline.reschedule(asyncio.get_running_loop().time())

    async def handle(self, client: Peer, request: h11.Request) -> None:
        """Serve one request, or raise Refused."""
        target = request.target.decode("ascii", "replace")
        if request.method == b"CONNECT":
            host, port = _authority(target)
            await self._tunnel(client, host, port)
        else:
            await self._plain(client, request, target)

    def _allowed(self, host: str, port: int) -> AllowedHost:
        for allowed in self._hosts:
            if allowed.matches(host, port):
                return allowed
        raise Refused(self._why)

    @asynccontextmanager
    async def _passing(self, host: str, port: int) -> AsyncIterator[None]:
        """Hold one request, which is cut off when its host is closed."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._under_way[deadline] = (host, port)
                yield
        except TimeoutError:
            if deadline.expired():
                raise Refused("the host was closed while the request was under way") from None
            raise
        finally:
            self._under_way.pop(deadline, None)

    async def _connect(self, client: Peer, host: str, port: int) -> Peer:
        try:
            private = self._allowed(host, port).allow_private
            if self._callers is not None and not await asyncio.to_thread(self._callers.made, client.ends):
                raise Refused("this program was not started by the commands that it is open for")
            reader, writer = await self._dialer.connect(host, port, secure=False, allow_private=private)
        except Refused as refusal:
            refusal.host, refusal.port = host, port
            raise
        return Peer(h11.CLIENT, reader, writer, client.meter, client.limits)

    async def _tunnel(self, client: Peer, host: str, port: int) -> None:
        async with self._passing(host, port), closing(await self._connect(client, host, port)) as upstream:
            await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            early, _ = client.http.trailing_data
            upstream.writer.write(early)
            await _pipe_both(client, upstream)

    async def _plain(self, client: Peer, request: h11.Request, target: str) -> None:
        host, port, path = _absolute(target)
        body = framing(request)
        async with self._passing(host, port), closing(await self._connect(client, host, port)) as upstream:
            headers = end_to_end(request.headers, b"host") + body
            named = host if port == 80 else f"{host}:{port}"
            head = request_head(request.method, path, named, headers)
            await exchange(client, upstream, head, lambda: relay_body(client, upstream), _pass_on)


async def _pass_on(client: Peer, upstream: Peer, response: h11.Response) -> None:
    headers = end_to_end(response.headers)
    await client.send(h11.Response(status_code=response.status_code, headers=headers, reason=response.reason))
    await relay_body(upstream, client)


def _authority(target: str) -> tuple[str, int]:
    """Host and port of `host:port`; brackets hold an IPv6 address."""
    host, _, port = target.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise Refused("CONNECT needs host:port", status=400, host=target)
    return _host(host), int(port)


def _absolute(target: str) -> tuple[str, int, str]:
    """Host, port and path of an absolute http URL."""
    try:
        parts = urlsplit(target)
        port = parts.port or 80
    except ValueError:
        raise Refused("the URL cannot be read", status=400, host=target) from None
    if parts.scheme != "http" or not parts.netloc:
        raise Refused(
            "this is a proxy: ask for http://host/path, or CONNECT for https", status=400, host=target
        )
    if "@" in parts.netloc or "#" in target:
        raise Refused("a URL with a user or a fragment in it", status=400, host=parts.hostname or "")
    path = parts.path or "/"
    host = _host(f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "")
    return host, port, f"{path}?{parts.query}" if parts.query else path


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise Refused("not an IPv6 address", status=400, host=text) from None
    name = host_name(text)
    if name is None:
        raise Refused("not a host name", status=400, host=text)
    return name


async def _pipe_both(client: Peer, upstream: Peer) -> None:
    """Pass bytes both ways until both sides are done, or nothing has moved for the idle time."""
    idle = client.limits.idle_seconds
    async with asyncio.timeout(idle) as deadline:

        async def pipe(source: Peer, sink: Peer) -> None:
            while data := await source.reader.read(BLOCK):
                deadline.reschedule(asyncio.get_running_loop().time() + idle)
                client.meter.count(len(data))
                sink.writer.write(data)
                await sink.writer.drain()
            if sink.writer.can_write_eof():
                sink.writer.write_eof()

        both = [asyncio.ensure_future(pipe(client, upstream)), asyncio.ensure_future(pipe(upstream, client))]
        try:
            await asyncio.gather(*both)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
