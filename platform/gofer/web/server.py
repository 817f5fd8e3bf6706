"""The HTTP server: uvicorn, with bounds on how long and how large a request's head may be, on slow readers, and on open
connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn, Protocol

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from gofer.settings import Settings
from gofer.web.auth.client_address import Peers, network_of
from gofer.web.body import CONNECTION, LAST_WORDS, MESSAGE_LIMIT, SEND_AT_ONCE
from gofer.web.problems import problem

log = structlog.get_logger()

MAX_CONNECTIONS = 4096
MAX_PER_ADDRESS = 200
TOLD_EVERY = 60.0
"""Seconds between two log lines about the limit."""


class LimitedClient(Protocol):
    """One connection, as the limit sees it."""

    address: str
    crowded: int
    """The status for a stranger's request when there is no room for it; 0 when there is."""

    def evict(self) -> None:
        """Close it now."""


def room_for_connections() -> int:
    """Half of the descriptors this process may open: the other half is for the database, shells and services."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft
    return max(16, min(MAX_CONNECTIONS, usable // 2))


def limit_for(settings: Settings) -> ConnectionLimit:
    """The limit for the network's listener."""
    trusts = Peers(settings).trusts
    return ConnectionLimit(settings.max_connections, settings.max_per_address, exempt=trusts)


class ConnectionLimit:
    """A bound on open connections, in all and per address, that nobody can use to shut others out. Of one server, and
    of its event loop only.

    A newcomer is never turned away for those who keep the server waiting. The one that has done so for longest is
    closed in its place, of the same address when that has more than its share. When the server waits for nobody, a
    newcomer may still say who it is: people who are signed in and health checks are answered.
    """

    def __init__(
        self,
        max_connections: int | None = None,
        max_per_address: int = MAX_PER_ADDRESS,
        exempt: Callable[[str], bool] = lambda address: not address,
    ) -> None:
        self.max_connections = max_connections or room_for_connections()
        self.max_per_address = max_per_address
        self._exempt = exempt
        """Addresses that many people share: our own proxies, and the Unix socket, which has none."""
        self._reserve = max(2, self.max_connections // 8)
        self._per_address: Counter[str] = Counter()
        self._waiting: dict[LimitedClient, None] = {}
        """Strangers that the server waits for, the one it has waited for longest first."""
        self._closed = 0
        self._told_at = -TOLD_EVERY
        self.open = 0

    def enter(self, client: LimitedClient) -> bool:
        """Count a new connection and make room for it; False when it must be closed at once."""
        self.open += 1
        self._per_address[client.address] += 1
        over = self._per_address[client.address] > self.max_per_address and not self._exempt(client.address)
        if over:
            client.crowded = 0 if self._evict(client.address) else 429
        elif self.open > self.max_connections - self._reserve:
            client.crowded = 0 if self._evict(None) else 503
        self.wait_for(client)
        return self.open <= self.max_connections

    def leave(self, client: LimitedClient) -> None:
        """Forget a connection that has ended."""
        self.open -= 1
        self._per_address[client.address] -= 1
        if self._per_address[client.address] <= 0:
            del self._per_address[client.address]
        self._waiting.pop(client, None)

    def wait_for(self, client: LimitedClient) -> None:
        """The server waits for this client from now on."""
        self._waiting.pop(client, None)
        self._waiting[client] = None

    def wait_no_more(self, client: LimitedClient) -> None:
        """The server no longer waits for this client: its request is complete, or it is signed in."""
        self._waiting.pop(client, None)

    def _evict(self, address: str | None) -> bool:
        victim = next((each for each in self._waiting if address is None or each.address == address), None)
        if victim is None:
            return False
        self._waiting.pop(victim)
        victim.evict()
        self._closed += 1
        if time.monotonic() - self._told_at >= TOLD_EVERY:
            self._told_at = time.monotonic()
            log.warning(
                "web.connections_full", open=self.open, closed=self._closed, address=address or victim.address
            )
            self._closed = 0
        return True


HEAD_TIMEOUT = 10.0
"""Seconds a request's head may take, and what is left of a body that nobody reads."""
READ_TIMEOUT = 60.0
"""Seconds a reader may leave unread what the server holds for it; then its connection is cut."""
GOODBYE_TIMEOUT = 3.0
"""Seconds in which a client has to read what it was sent before its WebSocket was closed."""
STOP_TIMEOUT = 5
"""Seconds that requests under way have to be answered once the server stops."""
FIRST_REQUEST, NEXT_REQUEST = 2.0, 0.1
"""Seconds that a request which is on its way has to arrive once the server stops: over a new connection, and over one
that was used before."""
MAX_HEAD = 64 * 1024
HEAD_TOO_LARGE = f"The head of a request may have {MAX_HEAD} bytes at most."
MAX_MESSAGE = 512 * 1024
"""Bytes of one message over a WebSocket, unless its endpoint says otherwise."""
BACKLOG = 256
"""Connections that may wait to be accepted: those that are come to the limit a few at a time."""
PING_INTERVAL, PING_TIMEOUT = 45.0, 20.0
"""Seconds between two pings over a WebSocket, and for the answer. Proxies close what is silent for a minute."""
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")


class Strict(HttpToolsProtocol):
    """uvicorn's protocol, with every bound on what a client may send before an app sees any of it."""

    def __init__(self, *args: Any, head_timeout: float, limit: ConnectionLimit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.crowded = 0
        self._head_timeout = head_timeout
        self._limit = limit
        self._unfinished_head = 0
        self._head_size = 0
        self._refusal: tuple[int, str] | None = None
        self._last_request = False
        self._overdue: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        if self._limit.enter(self):
            self._expect_soon()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        # As uvicorn's own, which would write a line into the log for everything that is no HTTP.
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()
        except httptools.HttpParserError:
            self._refuse_request(*(self._refusal or (400, "The request is not valid HTTP.")))
        if self._overdue is not None and not self.transport.is_closing() and not self._in_unread_body():
            self._unfinished_head += len(data)
            if self._unfinished_head > MAX_HEAD:
                self._refuse(431, HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = 0
        self._limit.wait_for(self)
        self._expect_soon()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._check_host()
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self._expect_no_more()  # no app reads the body of an upgrade, so it is bounded as a head is
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        super().on_headers_complete()
        if self._last_request and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._expect_no_more()
        self._limit.wait_no_more(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline or self.transport.is_closing():
            return
        self._limit.wait_for(self)
        if self.cycle.more_body:
            # Answered without reading the body; its sender may finish, but not hold the connection.
            self._expect_soon()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit.wait_for(self)
        self._unread = self.loop.call_later(READ_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self._limit.wait_no_more(self)
        self._is_read()

    def shutdown(self) -> None:
        """The server stops. A request that is on its way already is still read and answered; uvicorn would close a
        connection that was accepted a moment ago, and whoever sent something would have to send it again."""
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
            return
        self._last_request = True
        patience = FIRST_REQUEST if self.cycle is None else NEXT_REQUEST
        self.loop.call_later(patience, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_more()
        self._is_read()
        self._limit.leave(self)
        super().connection_lost(exc)

    def is_known(self) -> None:
        """The request at hand is of somebody who is signed in: it is not closed to make room for others."""
        self._limit.wait_no_more(self)

    @property
    def has_whole_body(self) -> bool:
        """Whether the last byte of the request at hand has arrived, and with it the last of those before it."""
        return self.cycle is not None and not self.cycle.more_body

    def evict(self) -> None:
        """Make room for others."""
        self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """From here on the WebSocket's own protocol hears of the connection, and of its end. Until whoever opened it
        is known, it is closed when others need the room."""
        self._limit.wait_for(self)
        super().handle_websocket_upgrade()
        taken_over = self.transport.get_protocol()
        assert isinstance(taken_over, WebSocket)
        taken_over.entered_by(self, partial(self._limit.leave, self))
        if not taken_over.handshake_initiated:
            self._refuse(400, "The handshake of the WebSocket cannot be read.")

    def _upgrade(self) -> None:
        if self._should_upgrade():
            self.handle_websocket_upgrade()
        # Any other upgrade is an offer that is not taken up; the request itself is answered.

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._stop(431, HEAD_TOO_LARGE)

    def _check_host(self) -> None:
        """One Host, and a plain one: else two readers of it could take the request to be for two servers."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            self._stop(400, "A request has one Host header.")
        if not hosts and self.parser.get_http_version() != "1.0":
            self._stop(400, "A request has a Host header.")
        if hosts and not HOST.fullmatch(hosts[0].strip()):
            self._stop(400, "The Host header must be a name or an address, with a port or none.")
        if not self.url.startswith(b"/") and self.url != b"*":
            named = httptools.parse_url(self.url)
            there = (named.host or b"") + (b":%d" % named.port if named.port else b"")
            if hosts[:1] != [there]:
                self._stop(400, "The address of the request and its Host header differ.")

    def _stop(self, status: int, detail: str) -> NoReturn:
        """Stop the parser; `data_received` sends the refusal."""
        self._refusal = status, detail
        raise ValueError(detail)

    def _refuse_request(self, status: int, detail: str) -> None:
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self._refuse(status, detail)
        else:
            # Garbage behind a whole request: that one is still owed its own answer.
            self.cycle.keep_alive = False

    def _in_unread_body(self) -> bool:
        """Whether what arrives is the rest of a body that was refused: bounded in time, and no head."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def _expect_soon(self) -> None:
        if self._overdue is None:
            self._unfinished_head = 0
            self._overdue = self.loop.call_later(self._head_timeout, self._give_up)

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
            self._refuse(408, f"The head of the request did not arrive within {self._head_timeout:.0f} s.")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer here: there is no request that the app could handle."""
        if self.transport.is_closing():
            return
        response = problem(status, detail, close=True)
        headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        self.transport.write(STATUS_LINE[status] + headers + b"\r\n" + bytes(response.body))
        self.transport.close()


class WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, with two additions: it calls `ended` when the connection ends, and it cuts off
    a client that does not read. uvicorn would wait for such a client for ever."""

    ended: Callable[[], None] | None = None
    last_words: Callable[[], str] | None = None
    _cut: asyncio.TimerHandle | None = None

    def entered_by(self, connection: Strict, ended: Callable[[], None]) -> None:
        """Take over a connection. The app sees it in the scope, and runs a moment later."""
        self.ended = ended
        scope = getattr(self, "scope", None)  # none for a handshake that was refused
        if scope is not None:
            scope[CONNECTION] = connection

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope[MESSAGE_LIMIT] = self._limit_messages  # type: ignore[literal-required]
            self.scope[LAST_WORDS] = self._say_last  # type: ignore[literal-required]
            self.scope[SEND_AT_ONCE] = self._send_at_once  # type: ignore[literal-required]

    def _limit_messages(self, size: int) -> None:
        """Bound the size of further messages."""
        self.conn.max_message_size = size

    def _say_last(self, words: Callable[[], str]) -> None:
        """Have a frame sent before the server closes the connection because it stops."""
        self.last_words = words

    def _send_at_once(self, words: Callable[[], str]) -> None:
        """Send a frame now, if there is room for it. Waiting for room would cost more than a small frame itself."""
        if self.conn.state is State.OPEN and self.writable.is_set():
            self.conn.send_text(words().encode())
            self.transport.write(b"".join(self.conn.data_to_send()))

    def shutdown(self) -> None:
        if self.last_words is not None and self.handshake_complete and not self.close_sent:
            self.conn.send_text(self.last_words().encode())
        super().shutdown()

    async def send(self, message: Any) -> None:
        """Send something when there is room for it; a goodbye goes behind whatever is unread."""
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # uvicorn would log an error for everybody who is not let in

    async def run_asgi(self) -> None:
        """Run the app; when it has ended, so does the connection."""
        await super().run_asgi()
        self._cut_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._cut_soon()

    def _cut_soon(self) -> None:
        if self._cut is None and not self.disconnected:
            self._cut = self.loop.call_later(GOODBYE_TIMEOUT, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cut is not None:
            self._cut.cancel()
        if self.ended is not None:
            self.ended()


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, and does nothing while it is idle."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Accept no more requests, and stop."""
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        for bound in sockets or ():
            _answer_at_once(bound)
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Tick once a second, for the date header alone. uvicorn's own loop ticks ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: whoever runs the server handles them."""
        yield

    @property
    def port(self) -> int:
        """The port it listens on, also when it was asked for any."""
        return int(self.servers[0].sockets[0].getsockname()[1])


class ShutdownNotice:
    """ASGI middleware: a request that the end of the process cuts off gets 503; uvicorn would answer 500."""

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
    app: ASGIApp,
    *,
    limit: ConnectionLimit | None = None,
    head_timeout: float = HEAD_TIMEOUT,
    stop_timeout: int = STOP_TIMEOUT,
    **where: Any,
) -> Server:
    """A server for an app: `host` and `port`, or `uds`."""
    config = uvicorn.Config(
        ShutdownNotice(app),
        http=partial(Strict, head_timeout=head_timeout, limit=limit or ConnectionLimit()),  # type: ignore[arg-type]
        ws=WebSocket,
        backlog=BACKLOG,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # uvicorn would believe every proxy on this machine; the guard knows whom to
        timeout_keep_alive=30,
        timeout_graceful_shutdown=stop_timeout,
        ws_max_size=MAX_MESSAGE,
        ws_ping_interval=PING_INTERVAL,
        ws_ping_timeout=PING_TIMEOUT,
        ws_per_message_deflate=False,
        **where,
    )
    return Server(config)


@contextlib.asynccontextmanager
async def listening(
    app: ASGIApp, bound: socket.socket, limit: ConnectionLimit | None = None
) -> AsyncIterator[Server]:
    """Serve an app on a bound socket for as long as the block lasts."""
    server = make_server(app, limit=limit)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield server
    finally:
        server.stop()
        await serving
