"""The HTTP server: uvicorn, with a limit on how long a request's head may take to arrive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_WITHIN = 10.0
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PromptHeads(HttpToolsProtocol):
    """uvicorn's protocol, which by itself would wait for ever for the rest of a head that comes in drops."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._overdue = self.loop.call_later(HEAD_WITHIN, self._give_up)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._overdue is None:
            self._overdue = self.loop.call_later(HEAD_WITHIN, self._give_up)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _give_up(self) -> None:
        self._overdue = None
        if not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()


class Server(uvicorn.Server):
    """A server that leaves signals to whoever runs it, and does nothing while nothing happens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests, and end."""
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Only the date header wants a tick; uvicorn's own loop would look ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not ours."""
        yield

    @property
    def port(self) -> int:
        """The port it listens on, also when it was asked for any."""
        return int(self.servers[0].sockets[0].getsockname()[1])


def make_server(app: ASGIApp, **where: Any) -> Server:
    """A server for an app: `host` and `port`, or `uds`."""
    config = uvicorn.Config(
        app,
        http=PromptHeads,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 1024,
        **where,
    )
    return Server(config)


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, bound: socket.socket) -> AsyncIterator[Server]:
    """Serve an app on a bound socket for as long as the block lasts."""
    server = make_server(app)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield server
    finally:
        server.stop()
        await serving
