"""Connecting to a name: resolve it here, check every address, and dial the checked one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from socket import SOCK_STREAM, getaddrinfo

import h11

from gofer_sandbox.network.addresses import refused
from gofer_sandbox.network.errors import ProxyRefused
from gofer_sandbox.network.http import Peer

Resolve = Callable[[str, int], Awaitable[list[str]]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_MAX_TRIED = 4


class SystemResolver:
    """The machine's own resolver, in a few threads of its own: a sandbox that asks for slow names must not
    take up the threads everything else shares."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4, "gofer-sandbox-resolve")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Its addresses, in the resolver's order."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, lambda: getaddrinfo(host, port, type=SOCK_STREAM))
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@cache
def default_tls() -> ssl.SSLContext:
    """The system's trust; made once, since reading the certificates takes a while."""
    return ssl.create_default_context()


class Dialer:
    """Opens connections to names on behalf of a sandbox.

    The name is looked up once and the very address that was checked is dialled, so an answer that changes
    between check and use (DNS rebinding) gains nothing.
    """

    def __init__(self, resolve: Resolve, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._resolve = resolve
        self._timeout = timeout
        self._tls = tls

    async def connect(self, host: str, port: int, *, secure: bool, allow_private: bool) -> Connection:
        """A connection, or ProxyRefused with the reason."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._dial(host, port, secure, allow_private)
        except TimeoutError:
            raise ProxyRefused("the host did not answer in time", status=504) from None

    @asynccontextmanager
    async def upstream(
        self, client: Peer, host: str, port: int, *, secure: bool, allow_private: bool
    ) -> AsyncIterator[Peer]:
        """The other side of a client's request, under the client's limits, and closed at the end."""
        reader, writer = await self.connect(host, port, secure=secure, allow_private=allow_private)
        peer = Peer(h11.CLIENT, reader, writer, client.meter, client.limits)
        try:
            yield peer
        finally:
            await peer.close()

    async def _dial(self, host: str, port: int, secure: bool, allow_private: bool) -> Connection:
        tls = (self._tls or default_tls()) if secure else None
        failure = "no address"
        addresses = (await self._addresses(host, port, allow_private))[:_MAX_TRIED]
        for address in addresses:
            try:
                async with asyncio.timeout(self._timeout / len(addresses)):
                    name = host if secure else None
                    return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
            except TimeoutError:
                failure = "no answer in time"
            except ssl.SSLError as error:
                failure = f"its TLS certificate or handshake failed ({error.reason or 'unknown'})"
            except OSError as error:
                failure = error.strerror or type(error).__name__
        raise ProxyRefused(f"could not connect: {failure}", status=502)

    async def _addresses(self, host: str, port: int, allow_private: bool) -> list[str]:
        try:
            found = await self._resolve(host, port)
        except OSError:
            raise ProxyRefused("the name could not be resolved", status=502) from None
        reasons = {address: refused(address) for address in found}
        allowed = [address for address in found if allow_private or reasons[address] is None]
        if not allowed:
            why = next(iter(reasons.values()), None)
            raise ProxyRefused(f"its address is {why}" if why else "the name has no address")
        return allowed
