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
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Begin to accept; takes the socket over."""
        listening.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listening)

    async def close(self) -> None:
        """Stop accepting and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meter = Meter(self._limits.connection_bytes, self._meter)
        client = Peer(h11.SERVER, reader, writer, meter, self._limits)
        crowded = len(self._connections) >= self._limits.connections
        task = asyncio.get_running_loop().create_task(self._serve(client, crowded))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, client: Peer, crowded: bool) -> None:
        try:
            async with asyncio.timeout(self._limits.connection_seconds):
                if crowded:
                    await self._refuse(client, None, Refused("too many connections at once", status=503))
                else:
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
            command = await asyncio.to_thread(command_behind, self._keeper, client.port)
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
            await answer(client, 200, refusal.report, "application/x-git-receive-pack-result")
