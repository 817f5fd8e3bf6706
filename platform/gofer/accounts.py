"""Connections as their integrations see them: the row, its settings, its secrets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from gofer.errors import NotFound, NotInstalled
from gofer.integration import Account, Integration
from gofer.registry import Registry
from gofer.store import signed
from gofer.store.database import Database
from gofer.store.tables import connections
from gofer.vault.envelope import Vault
from gofer.vault.stored import secrets_of
from gofer.vault.uses import Uses

if TYPE_CHECKING:
    import httpx2


MARKS = "marks 1"
"""The purpose of the key with which integrations sign what they write outside."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection with the code that speaks for it."""

    account: Account
    integration: Integration
    workspace_id: str
    enabled: bool


class Accounts:
    """Looks connections up.

    On SQLite all changes pass through this process, so what was read stays true until `forget`. On Postgres
    another process may have rotated a secret a moment ago, and the next request must know: nothing is kept.
    """

    def __init__(
        self,
        *,
        database: Database,
        vault: Vault,
        registry: Registry,
        public_url: str,
        uses: Uses,
        http: httpx2.AsyncClient | None = None,
        proxied: Callable[[str], httpx2.AsyncClient] | None = None,
    ) -> None:
        self._database = database
        self._vault = vault
        self._registry = registry
        self._public_url = public_url.rstrip("/")
        self._uses = uses
        self._http = http
        self._proxied = proxied
        self._kept: dict[str, Connected] = {}

    def forget(self) -> None:
        """Read everything anew from here on: a connection or a secret has changed."""
        self._kept.clear()

    async def get(self, connection_id: str) -> Connected:
        """A connection by id; raises NotFound, or NotInstalled while the code that speaks for it is missing."""
        if (kept := self._kept.get(connection_id)) is not None:
            return kept
        row, secrets = await self._database.read(lambda connection: self._read(connection, connection_id))
        connected = self.connected(row, secrets)
        if self._database.dialect == "sqlite":
            self._kept[connection_id] = connected
        return connected

    async def all(self) -> list[Connected]:
        """Every enabled connection whose integration is there."""
        ids = await self._database.read(
            lambda connection: list(
                connection.execute(select(connections.c.id).where(connections.c.enabled)).scalars()
            )
        )
        found = []
        for connection_id in ids:
            try:
                found.append(await self.get(connection_id))
            except (NotFound, NotInstalled, signed.RowRefused):
                continue
        return found

    def connected(self, row: Any, secrets: dict[str, Any]) -> Connected:
        """A connection's row with its secrets and code."""
        integration = self._integration(row)
        proxy = integration.proxy(row.settings, secrets) if self._proxied is not None else ""
        account = Account(
            id=row.id,
            name=row.name,
            settings=row.settings,
            secrets=secrets,
            hook_url=f"{self._public_url}/hooks/{row.id}" if self._public_url else None,
            http=self._http,
            proxied=self._proxied(proxy) if proxy and self._proxied is not None else None,
            on_use=partial(self._uses.add, row.workspace_id, row.id),
            signer=partial(self._sign, row.id),
        )
        return Connected(account, integration, row.workspace_id, row.enabled)

    def _sign(self, connection_id: str, *parts: str) -> str:
        return self._vault.mac_key(MARKS).digest(connection_id, *parts)

    def _integration(self, row: Any) -> Integration:
        """The code of a connection. Without it what is to be done waits, or is given up once it is switched off."""
        try:
            return self._registry.get(row.integration)
        except NotFound as error:
            if not row.enabled:
                raise
            raise NotInstalled(str(error)) from error

    def _read(self, connection: Connection, connection_id: str) -> tuple[Any, dict[str, Any]]:
        row = connection.execute(select(connections).where(connections.c.id == connection_id)).one_or_none()
        if row is None:
            raise NotFound(f"There is no connection {connection_id!r}.")
        signed.require(connection, connections, row)
        return row, secrets_of(connection, self._vault, workspace_id=row.workspace_id, owner=connection_id)
