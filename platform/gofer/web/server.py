"""The HTTP server: uvicorn, with bounds on how long and how large a request's head may be, and on slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gofer.web.problems import problem

HEAD_WITHIN = 10.0
"""Seconds a request's head may take, and what is left of a body that nobody reads."""
READ_WITHIN = 60.0
"""Seconds a reader may leave unread what the server holds for it; then its connection is cut."""
END_WITHIN = 5
"""Seconds that requests under way have to be answered once the server stops."""
MOST_HEAD = 64 * 1024
MOST_MESSAGE = 512 * 1024
"""Bytes of one message over a WebSocket."""


class Strict(HttpToolsProtocol):
    """uvicorn's protocol, which by itself would wait for ever for a head that comes in drops, and keep all of it."""

    def __init__(self, *args: Any, head_within: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_within = head_within
        self._head_size = 0
        self._overdue: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_soon()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._overdue is not None and not self.transport.is_closing() and not self._in_unread_body():
            self._head_size += len(data)
            if self._head_size > MOST_HEAD:
                self._refuse(431, f"The head of a request may have {MOST_HEAD} bytes at most.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_soon()

    def on_headers_complete(self) -> None:
        self._expect_no_more()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self.cycle.more_body and not self.transport.is_closing():
            # Answered without reading the body; its sender may finish, but not hold the connection.
            self._expect_soon()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_more()
        self._is_read()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self._refuse(400, msg)
        else:
            # Garbage behind a whole request: that one is still owed its own answer.
            self.cycle.keep_alive = False

    def _in_unread_body(self) -> bool:
        """Whether what arrives is the rest of a body that was refused: bounded in time, and no head."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def _expect_soon(self) -> None:
        if self._overdue is None:
            self._head_size = 0
            self._overdue = self.loop.call_later(self._head_within, self._give_up)

    def _expect_no_more(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._overdue = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_soon()
        elif self.cycle is not None and self.cycle.more_body:
            self.transport.close()
        else:
            self._refuse(408, f"The head of the request did not arrive within {self._head_within:.0f} s.")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer from here: there is no request that the app could be asked about."""
        if self.transport.is_closing():
            return
        response = problem(status, detail, close=True)
        headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        self.transport.write(STATUS_LINE[status] + headers + b"\r\n" + bytes(response.body))
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
        for bound in sockets or ():
            _answer_at_once(bound)
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


class Ending:
    """ASGI middleware: who is cut off by the process's end is told to come back, which uvicorn would call a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap an app."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] != "http" or begun:
                raise
            answer = problem(
                503, "The server is stopping. Send it again in a moment.", retry_after=1, close=True
            )
            await answer(scope, receive, send)


def _answer_at_once(bound: socket.socket) -> None:
    """Send each piece of an answer when it is there. asyncio sees to that only for sockets it makes itself; otherwise
    a body waits 40 ms for the caller to acknowledge its head."""
    if bound.family in (socket.AF_INET, socket.AF_INET6):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def make_server(
    app: ASGIApp, *, head_within: float = HEAD_WITHIN, end_within: int = END_WITHIN, **where: Any
) -> Server:
    """A server for an app: `host` and `port`, or `uds`."""
    config = uvicorn.Config(
        Ending(app),
        http=partial(Strict, head_within=head_within),  # type: ignore[arg-type]
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # uvicorn would believe every proxy on this machine; the guard knows whom to
        timeout_keep_alive=30,
        timeout_graceful_shutdown=end_within,
        ws_max_size=MOST_MESSAGE,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        ws_per_message_deflate=False,
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
