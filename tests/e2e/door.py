"""A running server with one connection, and a sender that can misbehave in every way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
from sqlalchemy import func, select

from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import conversations, deliveries, events, jobs, messages, participants
from gofer.vault.redaction import Secret
from gofer.web.app import public_app
from gofer.web.server import make_server
from support.patience import patience
from support.sqlite_template import with_tables

SIGNATURE = "x-hello-signature"
KEY = "the-signing-key-of-the-hello-connection"
NOWHERE = "http://127.0.0.1:9/replies"

Headers = list[tuple[Any, Any]]

_numbers = itertools.count(1)


def message(text: str = "hello", *, room: str = "kitchen", id_: str | None = None, **more: Any) -> bytes:
    """The body of a message."""
    id_ = id_ or f"m{next(_numbers)}"
    return json.dumps({"id": id_, "room": room, "from": "ann", "text": text, **more}).encode()


def sign(body: bytes, key: str = KEY) -> str:
    return hmac.new(key.encode(), body, hashlib.sha256).hexdigest()


@dataclass
class Door:
    """What a service sees of Gofer, and what Gofer keeps behind it."""

    platform: Platform
    port: int
    connection_id: str
    client: httpx2.AsyncClient
    known: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/hooks/{self.connection_id}"

    async def post(
        self,
        body: bytes,
        *,
        signature: str | bytes | None = None,
        headers: Headers | None = None,
        path: str | None = None,
    ) -> httpx2.Response:
        """Send a webhook, rightly signed unless told otherwise."""
        signed: Headers = [(SIGNATURE, sign(body) if signature is None else signature)]
        return await self.client.post(path or self.path, content=body, headers=(headers or []) + signed)

    async def post_unsigned(self, body: bytes, headers: Headers | None = None) -> httpx2.Response:
        return await self.client.post(self.path, content=body, headers=headers or [])

    async def raw(self, *pieces: bytes, pause: float = 0, within: float = 15) -> bytes:
        """Write bytes to a connection of their own; everything that comes back until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            reading = asyncio.ensure_future(_read_all(reader))
            for piece in pieces:
                if reading.done():
                    break
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(pause)
            return await asyncio.wait_for(reading, patience(within))
        finally:
            writer.close()

    def head(self, body: bytes = b"", *, headers: Mapping[str, str] | None = None) -> bytes:
        """The head of a webhook as bytes, to be tampered with."""
        given = {
            "host": "localhost",
            SIGNATURE: sign(body),
            "content-length": str(len(body)),
            "connection": "close",
            **(headers or {}),
        }
        lines = [f"{name}: {value}\r\n" for name, value in given.items() if value]
        return f"POST {self.path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()

    async def counts(self) -> dict[str, int]:
        """How many rows there are of everything a request could leave behind."""
        tables = (deliveries, conversations, messages, participants, jobs, events)
        queries = {table.name: select(func.count()).select_from(table) for table in tables}
        # What the owner changed is no request's doing.
        queries["event"] = queries["event"].where(events.c.kind != "connection.changed")
        return await self.platform.database.read(
            lambda c: {name: int(c.execute(query).scalar_one()) for name, query in queries.items()}
        )

    async def rows(self, query: Any) -> list[Any]:
        return list(await self.platform.database.read(lambda c: c.execute(query).all()))

    async def do(self, verb: Any) -> Any:
        return await self.platform.database.write(verb)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            received += piece
    return received


@contextlib.asynccontextmanager
async def open_door(
    settings: Settings,
    *roles: str,
    integration: str = "hello",
    reply_url: str = NOWHERE,
    connection_id: str = "",
    **serving: Any,
) -> AsyncIterator[Door]:
    """Serve on a free port of the loopback, with one connection, which is made unless it is named."""
    async with open_app(with_tables(settings), roles=frozenset(roles)) as platform:
        connection_id = connection_id or await platform.database.write(
            partial(
                add_connection,
                vault=platform.vault,
                workspace_id=FIRST_WORKSPACE,
                integration=platform.registry.get(integration),
                name="test",
                settings={"reply_url": reply_url},
                secrets_given={"signing_key": Secret(KEY)},
                by="test",
            )
        )
        await platform.reload_secrets()
        server = make_server(public_app(platform), host="127.0.0.1", port=0, **serving)
        running = asyncio.create_task(server.serve())
        await server.ready.wait()
        base = f"http://127.0.0.1:{server.port}"
        try:
            async with httpx2.AsyncClient(
                base_url=base, timeout=patience(30), limits=httpx2.Limits(max_connections=200)
            ) as client:
                yield Door(platform, server.port, connection_id, client)
        finally:
            server.stop()
            await running


def problem_of(response: httpx2.Response) -> dict[str, Any]:
    """The body of a refusal, which has the same shape everywhere and tells nothing of the inside."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found: dict[str, Any] = response.json()
    assert found["status"] == response.status_code
    assert found["title"]
    assert found["detail"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    return found
