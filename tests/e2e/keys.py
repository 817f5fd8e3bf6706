"""Changing a connection's key behind its back, in ways that people and accidents do."""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, delete, select, update

from e2e.door import Door
from gofer.secrets.secret_store import put_secret, secret_place
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import secrets
from gofer.vault.envelope import aad
from gofer.vault.redaction import Secret

NAME = "signing_key"


async def set_key(door: Door, key: str) -> None:
    """As `gofer secrets set` does."""
    await door.do(
        partial(
            put_secret,
            vault=door.platform.vault,
            workspace_id=FIRST_WORKSPACE,
            owner=door.connection_id,
            name=NAME,
            value=Secret(key),
        )
    )
    await door.platform.reload_secrets()


async def remove_key(door: Door) -> None:
    await door.do(lambda c: c.execute(delete(secrets).where(secrets.c.owner == door.connection_id)))
    await door.platform.reload_secrets()


async def plant_key(door: Door, key: str) -> None:
    """Seal a value that `put_secret` would not take, as an older release might have."""

    def plant(connection: Connection) -> None:
        row = connection.execute(select(secrets).where(secrets.c.owner == door.connection_id)).one()
        place = secret_place(FIRST_WORKSPACE, row.id)
        sealed = door.platform.vault.unwrap(row.data_key, place).seal(
            key.encode(), aad(FIRST_WORKSPACE, "secret", row.id, door.connection_id, NAME, "sealed")
        )
        connection.execute(update(secrets).where(secrets.c.id == row.id).values(sealed=sealed))

    await door.do(plant)
    await door.platform.reload_secrets()
