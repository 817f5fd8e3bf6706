"""Which master key the database is sealed with.

The database, not the ring, says which key wraps new values: rotation changes that and every wrapped value in
one transaction. So a process that has not heard of a new key yet cannot wrap with one that is being retired,
and a key put in front of the ring can be taken away again until the rotation has happened.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, exists, func, insert, or_, select

from gofer.store.db_time import now
from gofer.store.tables import conversations, master_keys, secrets
from gofer.vault.envelope import Vault, aad
from gofer.vault.errors import KeyMissing, KeyRefused, Tampered
from gofer.vault.keyring import MasterKey

_CANARY = b"gofer"
_LOCK = 0x676F_6665_725F_6B79  # "gofer_ky", an advisory lock nobody else takes


def canary_place(key_id: str) -> bytes:
    return aad("master_key", key_id, "canary")


def ciphertext_exists(connection: Connection) -> bool:
    """Whether anything stored needs a master key."""
    sealed = exists().where(conversations.c.data_key.is_not(None))
    query = select(or_(exists().where(master_keys.c.active), exists(secrets.select()), sealed))
    return bool(connection.execute(query).scalar_one())


def check_canary(connection: Connection, vault: Vault) -> bool:
    """Refuse to start with another key than the database's; the first start records its key.

    True when the ring's first key is not the one in use yet, which `gofer key rotate` puts right.
    """
    _lock(connection, shared=False)
    row = _active_row(connection)
    if row is None:
        _adopt(connection, vault)
        return False
    _check_known(vault, row.id)
    _open_canary(vault, row.id, row.canary)
    return bool(row.id != vault.ring.active.id)


def open_canary(connection: Connection, vault: Vault) -> None:
    """See that the key in use still opens what it sealed; raises KeyRefused or Tampered."""
    row = _active_row(connection)
    if row is not None:
        _check_known(vault, row.id)
        _open_canary(vault, row.id, row.canary)


def sealing_key(connection: Connection, vault: Vault, *, alone: bool = False) -> MasterKey:
    """The key to wrap new values with; no rotation can come between until the end of the transaction.

    With `alone`, no other transaction that wraps can come between either.
    """
    _lock(connection, shared=not alone)
    row = _active_row(connection)
    if row is None:
        check_canary(connection, vault)
        row = _active_row(connection)
    assert row is not None
    return vault.ring.find(bytes.fromhex(row.id))


def write_canary(connection: Connection, vault: Vault, key: MasterKey) -> None:
    """Make `key` the one in use. The caller holds the lock of the one before."""
    canary = vault.wrap(_CANARY, canary_place(key.id), key)
    connection.execute(master_keys.update().where(master_keys.c.active).values(active=False))
    connection.execute(master_keys.delete().where(master_keys.c.id == key.id))
    connection.execute(insert(master_keys).values(id=key.id, canary=canary, active=True, created_at=now()))


def _adopt(connection: Connection, vault: Vault) -> None:
    """Record the ring's key as the database's first."""
    if ciphertext_exists(connection):
        raise KeyRefused(
            "The database holds secrets but no record of their master key, so it is not whole. "
            "Restore it from a backup: gofer restore"
        )
    write_canary(connection, vault, vault.ring.active)


def _check_known(vault: Vault, key_id: str) -> None:
    try:
        vault.ring.find(bytes.fromhex(key_id))
    except KeyMissing:
        raise KeyRefused(
            f"This is not the master key of this database: it was sealed with key {key_id}, and the ring has "
            f"{', '.join(vault.ring.ids)}. Put the key file of this database back from your backup, "
            "or give its key in GOFER_MASTER_KEY."
        ) from None


def _open_canary(vault: Vault, key_id: str, canary: bytes) -> None:
    if vault.open(canary, canary_place(key_id)) != _CANARY:
        raise Tampered


def _active_row(connection: Connection) -> Row[*tuple[Any, ...]] | None:
    query = select(master_keys.c.id, master_keys.c.canary).where(master_keys.c.active)
    return connection.execute(query).one_or_none()


def _lock(connection: Connection, *, shared: bool) -> None:
    # Not a row lock: who waits for one is shown neither the old row nor yet the new. SQLite has one writer.
    if connection.dialect.name == "postgresql":
        take = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        connection.execute(select(take(_LOCK)))
