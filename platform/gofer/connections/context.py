"""Connections as their integrations see them: the row, its settings, its secrets."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import httpx2
from sqlalchemy import Connection, select

from gofer.connections.registry import IntegrationRegistry
from gofer.errors import ConfigError, NotFound, NotInstalled
from gofer.integration import ConnectionContext, Integration
from gofer.jobs.lease import only_while_held
from gofer.secrets.last_used import Uses
from gofer.secrets.secret_store import secrets_of
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.tables import connections
from gofer.vault.envelope import Vault

MARKS = "marks 1"
"""The purpose of the key with which integrations sign what they write outside."""


@dataclass(frozen=True, slots=True)
class LoadedConnection:
    """A connection with its integration."""

    account: ConnectionContext
    integration: Integration
    workspace_id: str
    enabled: bool


@dataclass(eq=False, kw_only=True)
class LoadedConnections:
    """Looks connections up.

    On SQLite all changes pass through this process, so what was read stays true until `forget`. On Postgres
    another process may have rotated a secret a moment ago, and the next request must know: nothing is kept.
    """

    database: Database
    vault: Vault
    registry: IntegrationRegistry
    public_url: str
    uses: Uses
    http: httpx2.AsyncClient | None = None
    proxied: Callable[[str], httpx2.AsyncClient] | None = None

    def __post_init__(self) -> None:
        self._public_url = self.public_url.rstrip("/")
        self._kept: dict[str, LoadedConnection] = {}

    def forget(self) -> None:
        """Drop what was read, because a connection or a secret has changed."""
        self._kept.clear()

    async def get(self, connection_id: str) -> LoadedConnection:
        """A connection by id; raises NotFound, or NotInstalled while its integration is missing."""
        if (kept := self._kept.get(connection_id)) is not None:
            return kept
        row, secrets = await self.database.read(lambda connection: self._read(connection, connection_id))
        connected = self.connected(row, secrets)
        if self.database.dialect == "sqlite":
            self._kept[connection_id] = connected
        return connected

    async def all(self) -> list[LoadedConnection]:
        """Every enabled connection whose integration is installed."""
        ids = await self.database.read(
            lambda connection: list(
                connection.execute(select(connections.c.id).where(connections.c.enabled)).scalars()
            )
        )
        found = []
        for connection_id in ids:
            try:
                found.append(await self.get(connection_id))
            except (NotFound, NotInstalled, row_macs.RowRefused):
                continue
        return found

    def connected(self, row: Any, secrets: dict[str, Any]) -> LoadedConnection:
        """A connection's row with its secrets and integration."""
        integration = self._integration(row)
        proxy = integration.proxy(row.settings, secrets) if self.proxied is not None else ""
        account = ConnectionContext(
            id=row.id,
            name=row.name,
            settings=row.settings,
            secrets=secrets,
            hook_url=f"{self._public_url}/hooks/{row.id}" if self._public_url else None,
            http=self.http,
            proxied=self.proxied(proxy) if proxy and self.proxied is not None else None,
            on_use=partial(self.uses.add, row.workspace_id, row.id),
            signer=partial(self._sign, row.id),
        )
        return LoadedConnection(account, integration, row.workspace_id, row.enabled)

    def _sign(self, connection_id: str, *parts: str) -> str:
        return self.vault.mac_key(MARKS).digest(connection_id, *parts)

    def _integration(self, row: Any) -> Integration:
        """The integration of a connection. Jobs wait until it is installed; those of a disabled connection end."""
        try:
            return self.registry.get(row.integration)
        except NotFound as error:
            if not row.enabled:
                raise
            raise NotInstalled(str(error)) from error

    def _read(self, connection: Connection, connection_id: str) -> tuple[Any, dict[str, Any]]:
        row = connection.execute(select(connections).where(connections.c.id == connection_id)).one_or_none()
        if row is None:
            raise NotFound(f"There is no connection {connection_id!r}.")
        row_macs.require(connection, connections, row)
        return row, secrets_of(connection, self.vault, workspace_id=row.workspace_id, owner=connection_id)


class HttpClients:
    """Makes clients and closes them."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._proxied: dict[str, httpx2.AsyncClient] = {}
        # One for all: a proxy of the environment has a transport of its own, which would read every certificate again.
        self._verify = _LateContext()
        self.shared = httpx2.AsyncClient(
            timeout=timeout, event_hooks={"request": [only_while_held]}, verify=self._verify
        )

    def through(self, proxy: str) -> httpx2.AsyncClient:
        """The client that goes through a proxy."""
        if proxy not in self._proxied:
            try:
                transport = _ProxyTransport(proxy, self._verify)
            except (ValueError, ImportError) as error:
                raise ConfigError(f"The proxy cannot be used: {error}") from None
            self._proxied[proxy] = httpx2.AsyncClient(
                timeout=self._timeout, event_hooks={"request": [only_while_held]}, transport=transport
            )
        return self._proxied[proxy]

    async def close(self) -> None:
        """Close them all."""
        for client in (self.shared, *self._proxied.values()):
            await client.aclose()


class _LateContext(ssl.SSLContext):
    """Verifies servers as httpx does by default, and reads the trusted certificates for the first connection: they are
    2 MiB, and a server may have nobody to call. By itself it trusts nobody."""

    def __new__(cls) -> _LateContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def _trusting(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._trusting.set_alpn_protocols(alpn_protocols)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._trusting.wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._trusting.wrap_socket(*arguments, **options)


class _ProxyTransport(httpx2.AsyncBaseTransport):
    """Goes through a proxy. A target that is kept out of the URL, for a token is in it, is meant for the service and
    not for the proxy: it is put in where nothing logs it any more."""

    def __init__(self, proxy: str, verify: ssl.SSLContext) -> None:
        self._inner = httpx2.AsyncHTTPTransport(proxy=proxy, verify=verify)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = request.extensions.get("target")
        if target is not None:
            rest = {name: value for name, value in request.extensions.items() if name != "target"}
            url = request.url.copy_with(raw_path=target)
            request = httpx2.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=rest
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()
