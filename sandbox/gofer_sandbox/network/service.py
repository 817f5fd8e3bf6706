"""Accepting a sandbox's connections and serving them one request after another, within limits."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

import h11

from gofer_sandbox.network.caller import command_behind
from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.http import Peer, answer, drain
from gofer_sandbox.network.limits import EgressLimits, Meter
from gofer_sandbox.network.refusals import Refusal, Refusals

_DISCARDED = 1024 * 1024
_PUSH_DISCARDED = 256 * 1024 * 1024
_AGAIN = 0.1


class Handler(Protocol):
    """One of the two proxies."""

    name: str

    async def handle(self, client: Peer, request: h11.Request) -> None:
        """Serve one request, or raise Refused."""


class Service:
    """One listening socket and its connections."""

    def __init__(
        self, handler: Handler, keeper: int, limits: EgressLimits, meter: Meter, refusals: Refusals
    ) -> None:
        """`keeper` is the sandbox's first process, below which the connections' programs are found."""
        self._handler = handler
        self._keeper = keeper
        self._looking = asyncio.Lock()  # one search at a time: who provokes many waits for his own
        self._limits = limits
        self._meter = meter
        self._refusals = refusals
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: set[socket.socket] = set()
        """Accepted, and not begun with: a task that is cancelled before it has begun closes nothing."""
        self._places = asyncio.Semaphore(limits.connections)
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Begin to accept; takes the socket over."""
        listening.setblocking(False)
        self._listening = listening
        self._accepting = asyncio.create_task(self._accept(listening))

    async def close(self) -> None:
        """Stop accepting and end every connection."""
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._waiting:
            connection.close()
        if self._listening:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        """Accept only what there is a place for. The rest waits in the kernel's bounded backlog, where it costs
        this process no descriptor, however many a sandbox opens."""
        while True:
            await self._places.acquire()
            try:
                await _readable(listening)
                connection, _ = listening.accept()
            except OSError:  # it went away again, or this process has no descriptor left for now
                self._places.release()
                await asyncio.sleep(_AGAIN)
                continue
            connection.setblocking(False)
            self._waiting.add(connection)
            task = asyncio.create_task(self._connected(connection))
            self._connections.add(task)
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._places.release()

    async def _connected(self, connection: socket.socket) -> None:
        self._waiting.discard(connection)
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        meter = Meter(self._limits.connection_bytes, self._meter)
        await self._serve(Peer(h11.SERVER, reader, writer, meter, self._limits))

    async def _serve(self, client: Peer) -> None:
        try:
            async with asyncio.timeout(self._limits.connection_seconds):
                await self._requests(client)
        except (OSError, TimeoutError, h11.LocalProtocolError, h11.RemoteProtocolError):
            pass  # the other side went away or fell silent: there is nobody to tell
        finally:
            await client.close()

    async def _requests(self, client: Peer) -> None:
        """Serve requests until one is refused or the connection is used up."""
        while True:
            request: h11.Request | None = None
            try:
                event = await client.receive(self._limits.header_seconds)
                if not isinstance(event, h11.Request):
                    return
                request = event
                await self._handler.handle(client, request)
            except Refused as refusal:
                await self._refuse(client, request, refusal)
                return
            if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                return
            client.http.start_next_cycle()

    async def _refuse(self, client: Peer, request: h11.Request | None, refusal: Refused) -> None:
        """Tell the caller first: while the program waits for its answer, it can still be found."""
        method = request.method.decode("ascii", "replace") if request else ""
        async with self._looking:
            command = await asyncio.to_thread(command_behind, self._keeper, client.ends)
        self._refusals.add(
            Refusal(
                self._handler.name,
                method,
                refusal.host,
                refusal.port,
                refusal.path,
                refusal.reason,
                command,
            )
        )
        if refusal.report is None:
            await answer(client, refusal.status, f"Refused by the sandbox: {refusal.reason}\n".encode())
            await drain(client, _DISCARDED, 2)
        else:
            await drain(client, _PUSH_DISCARDED, self._limits.idle_seconds)
            await answer(client, 200, refusal.report, refusal.report_type)


async def _readable(listening: socket.socket) -> None:
    """Wait until somebody connects. The loop's own `sock_accept`, cancelled when it has just accepted, leaves a
    connection that nobody closes."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    loop.add_reader(listening, woken.set)
    try:
        await woken.wait()
    finally:
        loop.remove_reader(listening)
