"""Messages sent as services send them (again, until they are acknowledged) and the look at what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

from e2e.invariants import Findings, Shown, look, settled
from e2e.process import PLUGIN, Gofer, free_port
from e2e.services import EditService
from gofer.app import open_app
from gofer.connections.changes import add_connection
from gofer.connections.registry import IntegrationRegistry
from gofer.secrets.secret_store import put_secret
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.postgres import PostgresDatabase
from gofer.vault.redaction import Secret
from gofer_standins.hello import HelloService
from support.patience import eventually, patience
from support.sqlite_template import with_tables

T = TypeVar("T")

KEY = "the-signing-key-of-the-scenario"

Service = HelloService | EditService


@dataclass
class Scenario:
    """One installation, one connection, one service, and everybody who writes there."""

    data_dir: Path
    service: Service
    connection_id: str
    port: int
    environment: dict[str, str]
    client: httpx2.AsyncClient
    store: PostgresDatabase | Engine
    acknowledged: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    started: list[Gofer] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.data_dir.parent / "log"

    def start(self, *roles: str, crash_at: str = "") -> Gofer:
        """Start a process; by default one that does everything."""
        gofer = Gofer(self.environment, *(roles or ("web", "worker")), log=self.log, crash_at=crash_at)
        self.started.append(gofer)
        return gofer

    async def say(self, id_: str, room: str, text: str) -> None:
        """Send a message until it is acknowledged, as Telegram does."""
        self.service.rooms.add(room)
        body = json.dumps({"id": id_, "room": room, "from": "ada", "text": text}).encode()
        while True:
            with contextlib.suppress(httpx2.TransportError):
                response = await self.client.post(
                    f"http://127.0.0.1:{self.port}/hooks/{self.connection_id}",
                    content=body,
                    headers=self.headers(body),
                )
                if response.is_success:
                    self.acknowledged[room].append(id_)
                    return
                assert response.status_code == 503, response.text
            await asyncio.sleep(0.03)

    def headers(self, body: bytes) -> dict[str, str]:
        """What a body is signed with."""
        return {"x-hello-signature": hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()}

    async def say_in_turn(self, room: str, texts: Sequence[str]) -> None:
        """The next one only after the last was acknowledged, so that there is an order to keep."""
        for number, text in enumerate(texts):
            await self.say(f"{room}-{number}", room, text)

    async def control(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """A request to the control API of the running server."""
        transport = httpx2.AsyncHTTPTransport(uds=str(self.data_dir / "gofer.sock"))
        async with httpx2.AsyncClient(transport=transport, timeout=patience(30)) as client:
            return await client.request(method, f"http://gofer/api/v1{path}", json=body)

    async def read(self, verb: Callable[[Connection], T]) -> T:
        """Look into the store beside whoever runs."""
        if isinstance(self.store, PostgresDatabase):
            return await self.store.read(verb)
        with self.store.connect() as connection:
            return verb(connection)

    async def settle(self, within: float = 30) -> bool:
        """Wait until everything has reached an end; False when it does not."""

        async def all_settled() -> bool:
            return await self.read(settled)

        with contextlib.suppress(TimeoutError):
            return bool(await eventually(all_settled, within))
        return False

    async def findings(self) -> Findings:
        return await self.read(partial(look, acknowledged=self.acknowledged, shown=self.shown()))

    def shown(self) -> list[Shown]:
        """What people see, orphan openings left out."""
        if isinstance(self.service, HelloService):
            return [Shown(reply.key, reply.room) for reply in self.service.ledger]
        return [Shown(sent.key, sent.room) for sent in self.service.messages if sent.key]

    def orphans(self) -> int:
        """Openings that never became a reply."""
        if isinstance(self.service, HelloService):
            return 0
        return sum(not sent.key for sent in self.service.messages)


@contextlib.asynccontextmanager
async def prepared(
    data_dir: Path, database_url: str, *, integration: str = "hello", canary: str = "", **settings: Any
) -> AsyncIterator[Scenario]:
    """An installation with a connection, not yet running; and with a secret of that value, if one is given."""
    service: Service = HelloService(KEY) if integration == "hello" else EditService()
    async with service.open(), httpx2.AsyncClient(timeout=patience(10)) as client:
        connection_id = await _connect(data_dir, database_url, integration, service.url, canary)
        port = free_port()
        given = {"lease": 1, "poll_interval": 0.25, "request_timeout": 1, "stop_within": 2, "sandbox": "off"}
        given |= {"host": "127.0.0.1", "port": port, "data_dir": data_dir, "log_format": "json", **settings}
        environment = {f"GOFER_{name.upper()}": str(value) for name, value in given.items()}
        environment["GOFER_TEST_MARKS"] = str(data_dir.parent / "marks")
        if database_url:
            environment["GOFER_DATABASE_URL"] = database_url
        store = (
            PostgresDatabase(database_url, pool_size=1) if database_url else _reader(data_dir / "gofer.db")
        )
        scenario = Scenario(data_dir, service, connection_id, port, environment, client, store)
        try:
            yield scenario
        finally:
            for gofer in scenario.started:
                gofer.kill()
            if isinstance(store, PostgresDatabase):
                await store.close()


def _reader(path: Path) -> Engine:
    return create_engine(f"sqlite:///file:{path}?mode=ro&uri=true", poolclass=NullPool)


async def _connect(data_dir: Path, database_url: str, integration: str, url: str, canary: str) -> str:
    settings = with_tables(Settings(data_dir=data_dir, database_url=database_url))
    async with open_app(settings, roles=frozenset()) as platform:
        if canary:
            put = partial(put_secret, workspace_id=FIRST_WORKSPACE, name="canary", value=Secret(canary))
            await platform.database.write(partial(put, vault=platform.vault))
        return await platform.database.write(
            partial(
                add_connection,
                vault=platform.vault,
                workspace_id=FIRST_WORKSPACE,
                integration=_integration(integration),
                name="scenario",
                settings={"reply_url": url},
                secrets_given={"signing_key": Secret(KEY)},
                by="test",
            )
        )


def _integration(name: str) -> Any:
    import sys

    if str(PLUGIN) not in sys.path:
        sys.path.append(str(PLUGIN))
    return IntegrationRegistry.installed().get(name)
