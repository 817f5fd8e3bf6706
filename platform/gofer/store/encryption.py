"""Seals people's words with their conversation's data key, bound to the row they belong to, and digests them with keys.

Digests stay after a purge. They are keyed, because a plain hash of a short message can be guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, select, true

from gofer.errors import NotFound
from gofer.store import fast_sql, json_text
from gofer.store.tables import conversations, deliveries
from gofer.vault.envelope import DataKey, Vault, aad

_KEYED = "k1:"
_PAGE = 500


def conversation_place(conversation_id: str) -> bytes:
    """What a conversation's wrapped data key is bound to."""
    return aad("conversation", conversation_id, "data_key")


def connection_place(connection_id: str) -> bytes:
    """What a connection's wrapped data key is bound to."""
    return aad("connection", connection_id, "data_key")


def conversation_key(connection: Connection, vault: Vault, conversation_id: str) -> DataKey:
    """The data key of a conversation; raises NotFound when it is purged or never was."""
    return data_key(
        vault, conversation_id, fast_sql.scalar(connection, _DATA_KEY, {"conversation": conversation_id})
    )


def data_key(vault: Vault, conversation_id: str, wrapped: bytes | None) -> DataKey:
    """The data key in a conversation's row; raises NotFound when it is purged or never was."""
    if wrapped is None:
        raise NotFound(f"The conversation {conversation_id} is purged or unknown.")
    return vault.unwrap(wrapped, conversation_place(conversation_id))


_DATA_KEY = select(conversations.c.data_key).where(conversations.c.id == bindparam("conversation"))


def seal(key: DataKey, value: Any, *place: str | int) -> bytes:
    """Seal a JSON value for one place (table, row …)."""
    return key.seal(json_text.encode(value), aad(*place))


def unseal(key: DataKey, sealed: bytes, *place: str | int) -> Any:
    """Open what `seal` made for the same place."""
    return json_text.read(key.open(sealed, aad(*place)))


def body_digest(vault: Vault, body: bytes) -> str:
    """The digest of a delivery's body, by which a repeat is recognised."""
    return _keyed(vault, hashlib.sha256(body).hexdigest())


def blob_digest(vault: Vault, conversation_id: str, data: bytes) -> str:
    """The digest that names a conversation's file."""
    return vault.mac_key("blob").digest(conversation_id, hashlib.sha256(data).digest())


def key_body_digests(connection: Connection, vault: Vault, which: ColumnElement[bool] | None = None) -> int:
    """Replace the plain hashes of an older release by keyed digests; returns how many there were."""
    change = (
        deliveries.update().where(deliveries.c.id == bindparam("row_id")).values(body_hash=bindparam("keyed"))
    )
    count = 0
    for page in _plain(connection, true() if which is None else which):
        connection.execute(change, [{"row_id": id_, "keyed": _keyed(vault, plain)} for id_, plain in page])
        count += len(page)
    return count


def _keyed(vault: Vault, plain: str) -> str:
    return _KEYED + vault.mac_key("delivery body").digest(plain)


def _plain(connection: Connection, which: ColumnElement[bool]) -> Iterator[list[tuple[int, str]]]:
    columns = deliveries.c
    query = select(columns.id, columns.body_hash).where(which, columns.body_hash.not_like(f"{_KEYED}%"))
    last = 0
    while page := connection.execute(query.where(columns.id > last).order_by(columns.id).limit(_PAGE)).all():
        yield [(row.id, row.body_hash) for row in page]
        last = page[-1].id
