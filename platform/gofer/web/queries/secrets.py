"""Secrets: keep one, remove one. A value never comes out."""

from __future__ import annotations

from functools import partial

from gofer.app import Platform
from gofer.connections.changes import find_connection
from gofer.connections.health import set_up
from gofer.integration import Health
from gofer.secrets.secret_store import StoredSecret, delete_secret, list_secrets, put_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret


async def stored_secrets(platform: Platform) -> list[StoredSecret]:
    """Names and times, with the latest uses."""
    await platform.uses.note()
    return await platform.database.read(list_secrets, workspace_id=FIRST_WORKSPACE)


async def keep_secret(platform: Platform, *, owner: str, name: str, value: Secret) -> Health | None:
    """Keep a secret, replacing the one there; a connection's service is then set up again, and says how it is.

    Raises NotFound when its owner is no connection.
    """
    if owner:
        await platform.database.read(find_connection, connection_id=owner)
    put = partial(put_secret, vault=platform.vault, workspace_id=FIRST_WORKSPACE, owner=owner)
    await platform.database.write(put, name=name, value=value)
    await platform.secrets_changed()
    return await set_up(platform, owner) if owner else None


async def remove_secret(platform: Platform, *, owner: str, name: str) -> None:
    """Delete a secret; raises NotFound."""
    await platform.database.write(delete_secret, workspace_id=FIRST_WORKSPACE, owner=owner, name=name)
    await platform.secrets_changed()
