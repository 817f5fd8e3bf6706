"""One request to an upstream and its answer back, both flowing at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import h11

from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.http import BodyCutOff, Headers, Peer

Responder = Callable[[Peer, Peer, h11.Response], Awaitable[None]]


@asynccontextmanager
async def closing(upstream: Peer) -> AsyncIterator[Peer]:
    """Close the upstream at the end, whatever happens."""
    try:
        yield upstream
    finally:
        await upstream.close()


async def exchange(
    client: Peer,
    upstream: Peer,
    head: h11.Request,
    send_body: Callable[[], Awaitable[None]],
    respond: Responder,
) -> None:
    """Send head and body while waiting for the answer, which may come before the body has gone."""
    await upstream.send(head)
    upload = asyncio.ensure_future(send_body())
    download = asyncio.ensure_future(_receive(client, upstream, respond))
    try:
        await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
        # An upstream that stops reading may still have answered; a client that goes away wants no answer.
        if upload.done() and isinstance(error := upload.exception(), Refused | TimeoutError | BodyCutOff):
            raise error
        await download
    finally:
        for task in (upload, download):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(upload, download, return_exceptions=True)


async def _receive(client: Peer, upstream: Peer, respond: Responder) -> None:
    while True:
        event = await upstream.receive()
        if isinstance(event, h11.Response):
            await respond(client, upstream, event)
            return
        if not isinstance(event, h11.InformationalResponse):
            raise Refused("the upstream closed without an answer", status=502)


def request_head(method: bytes, target: str, host: str, headers: Headers) -> h11.Request:
    """A request for an upstream, on a connection of its own."""
    return h11.Request(
        method=method,
        target=target,
        headers=[(b"host", host.encode()), (b"connection", b"close"), *headers],
    )
