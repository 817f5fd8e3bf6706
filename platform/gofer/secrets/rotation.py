"""A new master key: put in front, everything wrapped anew, the old one retired.

Each step leaves every value readable: the file has the new key before the database needs it, the database
changes in one transaction, and the old key leaves the file only after that.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, Table, bindparam, select

from gofer.crash import crash_point
from gofer.errors import NotFound
from gofer.secrets.key_check import sealing_key, write_canary
from gofer.secrets.secret_store import secret_place
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import connection_place, conversation_place
from gofer.store.events import record_many
from gofer.store.tables import connections, conversations, secrets, workspaces
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.keyring import MasterKey

_PAGE = 500

AnyRow: TypeAlias = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did."""

    key_id: str
    """The key everything is wrapped with now."""
    secrets: int
    conversations: int
    connections: int = 0
    retired: tuple[str, ...] = ()
    """Keys that nothing stored needs any more."""


async def rotate_master_key(database: Database, vault: Vault) -> Rotation:
    """Change the master key while serving. A ring from the environment brings its new key along itself."""
    if vault.ring.path is not None:
        await asyncio.to_thread(vault.ring.add_key)
        crash_point("key.added")
    done = await database.write(rotate, vault=vault)
    crash_point("key.rewrapped")
    if vault.ring.path is None:
        return done
    retired = await asyncio.to_thread(vault.ring.retire_behind, done.key_id)
    crash_point("key.retired")
    return dataclasses.replace(done, retired=retired)


def rotate(connection: Connection, vault: Vault) -> Rotation:
    """Wrap every data key with the ring's first key, in one transaction. Doing it again changes nothing."""
    # Locks out everybody who wraps, and hears of a key that another process has put in front meanwhile.
    before = sealing_key(connection, vault, alone=True)
    key = vault.ring.active
    done = Rotation(
        key.id,
        secrets=_rewrap(connection, vault, key, secrets, lambda row: secret_place(row.workspace_id, row.id)),
        conversations=_rewrap(connection, vault, key, conversations, lambda row: conversation_place(row.id)),
        connections=_rewrap(connection, vault, key, connections, lambda row: connection_place(row.id)),
    )
    if before.id != key.id:
        write_canary(connection, vault, key)
        _record(connection, before, done)
    return done


def new_conversation_key(connection: Connection, vault: Vault, conversation_id: str) -> bytes:
    """A data key for a new conversation, wrapped with the key the database is sealed with."""
    return vault.new_data_key(conversation_place(conversation_id), sealing_key(connection, vault))


def connection_key(connection: Connection, vault: Vault, connection_id: str) -> DataKey:
    """The data key of a connection, made when it has none; raises NotFound when there is no such connection."""
    place, of_it = connection_place(connection_id), connections.c.id == connection_id
    query = select(connections.c.data_key).where(of_it)
    if connection.execute(query).scalar_one_or_none() is None:
        made = vault.new_data_key(place, sealing_key(connection, vault))
        # Another request may make one in the same instant; the first one stays.
        unset = of_it & connections.c.data_key.is_(None)
        connection.execute(connections.update().where(unset).values(data_key=made))
    wrapped = connection.execute(query).scalar_one_or_none()
    if wrapped is None:
        raise NotFound(f"There is no connection {connection_id!r}.")
    return vault.unwrap(wrapped, place)


def destroy_conversation_key(connection: Connection, vault: Vault, conversation_id: str) -> bool:
    """Make all that is sealed for a conversation unreadable for good; False if it was already."""
    here = (conversations.c.id == conversation_id) & conversations.c.data_key.is_not(None)
    query = select(conversations.c.data_key).where(here).with_for_update()
    wrapped = connection.execute(query).scalar_one_or_none()
    if wrapped is None:
        return False
    connection.execute(conversations.update().where(here).values(data_key=None, purged_at=now()))
    vault.forget(wrapped, conversation_place(conversation_id))
    return True


def _rewrap(
    connection: Connection,
    vault: Vault,
    key: MasterKey,
    table: Table,
    place: Callable[[AnyRow], bytes],
) -> int:
    # The old value is part of the condition: a purge that came between must not be undone.
    change = (
        table.update()
        .where(table.c.id == bindparam("row_id"), table.c.data_key == bindparam("old"))
        .values(data_key=bindparam("new"))
    )
    count = 0
    for page in _pages(connection, table):
        changes = [
            {"row_id": row.id, "old": row.data_key, "new": new}
            for row in page
            if (new := vault.rewrap(row.data_key, place(row), key)) is not row.data_key
        ]
        if changes:
            connection.execute(change, changes)
        count += len(changes)
    return count


def _pages(connection: Connection, table: Table) -> Iterator[list[AnyRow]]:
    query = select(table.c.id, table.c.workspace_id, table.c.data_key).where(table.c.data_key.is_not(None))
    last = ""
    while page := list(connection.execute(query.where(table.c.id > last).order_by(table.c.id).limit(_PAGE))):
        yield page
        last = page[-1].id


def _record(connection: Connection, before: MasterKey, done: Rotation) -> None:
    facts = {
        "from": before.id,
        "to": done.key_id,
        "secrets": done.secrets,
        "conversations": done.conversations,
        "connections": done.connections,
    }
    ids = connection.execute(select(workspaces.c.id)).scalars()
    record_many(connection, [{"kind": "key.rotated", "workspace_id": id_, "data": facts} for id_ in ids])
