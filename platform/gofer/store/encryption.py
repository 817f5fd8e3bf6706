"""Sealing people's words with their conversation's data key, bound to the row they belong to."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select

from gofer.errors import NotFound
from gofer.store import fast_sql, json_text
from gofer.store.tables import conversations
from gofer.vault.envelope import DataKey, Vault, aad


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
