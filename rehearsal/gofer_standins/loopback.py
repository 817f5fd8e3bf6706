"""Serving an ASGI app on a free loopback port, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _Droppable(HttpToolsProtocol):
    """Lets an app hang up in the middle, as networks do."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["transport"] = self.transport  # type: ignore[typeddict-unknown-key]


def hang_up(request: Request) -> None:
    """Close the connection without an answer."""
    request.scope["transport"].abort()


@contextlib.asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[str]:
    """Yields the base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # as real servers do; else answers come 40 ms late
    config = uvicorn.Config(
        app,
        http=_Droppable,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
        ws="none",
        access_log=False,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.ensure_future(server._serve([listener]))
    try:
        while not server.started:
            if running.done():
                await running
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()
