"""The root of all MAC keys: one per database, wrapped by the master key.

It is a row of the table of secrets, under an owner that no person can write to. So rotating the master key wraps it
anew like every other secret, in this release and in the one before, and what it has signed stays signed.
"""

from __future__ import annotations

import base64
import os

from sqlalchemy import Connection, select

from gofer.secrets.key_check import sealing_key
from gofer.secrets.secret_store import PLATFORM, get_secret, write_secret
from gofer.store.tables import secrets, workspaces
from gofer.vault.envelope import MacKeys, Vault
from gofer.vault.redaction import Secret

ROOT = "mac_root"
_ROOT_BYTES = 32


def load_mac_keys(connection: Connection, vault: Vault) -> bool:
    """Make `vault.mac_key` usable; the first time, make the root. True when it was made."""
    root = _stored(connection, vault)
    made = root is None
    if root is None:
        # Another process may start in the same instant; the first one's root stays.
        sealing_key(connection, vault, alone=True)
        root = _stored(connection, vault)
        made = root is None
    if root is None:
        root = os.urandom(_ROOT_BYTES)
        first = connection.execute(
            select(workspaces.c.id).order_by(workspaces.c.created_at).limit(1)
        ).scalar_one()
        value = Secret(base64.b64encode(root).decode())
        write_secret(connection, vault, workspace_id=first, owner=PLATFORM, name=ROOT, value=value)
    vault.mac_keys = MacKeys(root)
    return made


def _stored(connection: Connection, vault: Vault) -> bytes | None:
    ours = secrets.c.owner == PLATFORM, secrets.c.name == ROOT
    found = connection.execute(select(secrets.c.workspace_id).where(*ours)).scalar()
    if found is None:
        return None
    value = get_secret(connection, vault, workspace_id=found, owner=PLATFORM, name=ROOT)
    return base64.b64decode(value.reveal())
