"""The forward proxy: CONNECT and plain requests to allowed hosts."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11

from gofer_sandbox.network import http
from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.dial import Dialer
from gofer_sandbox.network.errors import ProxyRefused
from gofer_sandbox.network.http import Peer
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
        self._under_way = http.UnderWay("the host was closed while the request was under way")

    def allow(self, hosts: Sequence[AllowedHost], callers: Callers | None, why: str) -> None:
        """From now on, these hosts and no others, to certain programs if they are given. What is under way to a host
        that is closed now is cut off."""
        self._hosts, self._callers, self._why = tuple(hosts), callers, why or NOT_ALLOWED
        self._under_way.cut(lambda host, port: self._allowed(host, port) is not None)

    async def handle(self, client: Peer, request: h11.Request) -> None:
        """Serve one request, or raise ProxyRefused."""
        target = request.target.decode("ascii", "replace")
        if request.method == b"CONNECT":
            host, port = _authority(target)
            await self._tunnel(client, host, port)
        else:
            await self._plain(client, request, target)

    def _allowed(self, host: str, port: int) -> AllowedHost | None:
        return next((allowed for allowed in self._hosts if allowed.matches(host, port)), None)

    @asynccontextmanager
    async def _upstream(self, client: Peer, host: str, port: int) -> AsyncIterator[Peer]:
        """A connection to a host that is allowed; cut off when it is no more."""
        try:
            async with self._under_way.hold(host, port):
                allowed = self._allowed(host, port)
                if allowed is None:
                    raise ProxyRefused(self._why)
                if self._callers is not None:
                    await self._callers.require(client.ends)
                private = allowed.allow_private
                async with self._dialer.upstream(
                    client, host, port, secure=False, allow_private=private
                ) as peer:
                    yield peer
        except ProxyRefused as refusal:
            refusal.host, refusal.port = host, port
            raise

    async def _tunnel(self, client: Peer, host: str, port: int) -> None:
        async with self._upstream(client, host, port) as upstream:
            await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            early, _ = client.http.trailing_data
            upstream.writer.write(early)
            await _pipe_both(client, upstream)

    async def _plain(self, client: Peer, request: h11.Request, target: str) -> None:
        host, port, path = _absolute(target)
        body = http.framing(request)
        async with self._upstream(client, host, port) as upstream:
            headers = http.end_to_end(request.headers, b"host") + body
            named = host if port == 80 else f"{host}:{port}"
            head = http.request_head(request.method, path, named, headers)
            await http.exchange(client, upstream, head, http.relay_answer)


def _authority(target: str) -> tuple[str, int]:
    """Host and port of `host:port`; brackets hold an IPv6 address."""
    host, _, port = target.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise ProxyRefused("CONNECT needs host:port", status=400, host=target)
    return _host(host), int(port)


def _absolute(target: str) -> tuple[str, int, str]:
    """Host, port and path of an absolute http URL."""
    try:
        parts = urlsplit(target)
        port = parts.port or 80
    except ValueError:
        raise ProxyRefused("the URL cannot be read", status=400, host=target) from None
    if parts.scheme != "http" or not parts.netloc:
        raise ProxyRefused(
            "this is a proxy: ask for http://host/path, or CONNECT for https", status=400, host=target
        )
    if "@" in parts.netloc or "#" in target:
        raise ProxyRefused("a URL with a user or a fragment in it", status=400, host=parts.hostname or "")
    path = parts.path or "/"
    host = _host(f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "")
    return host, port, f"{path}?{parts.query}" if parts.query else path


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise ProxyRefused("not an IPv6 address", status=400, host=text) from None
    name = host_name(text)
    if name is None:
        raise ProxyRefused("not a host name", status=400, host=text)
    return name


async def _pipe_both(client: Peer, upstream: Peer) -> None:
    """Pass bytes both ways until both sides are done, or nothing has moved for the idle time."""
    idle = client.limits.idle_seconds
    async with asyncio.timeout(idle) as deadline:

        async def pipe(source: Peer, sink: Peer) -> None:
            while data := await source.reader.read(http.BLOCK):
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
