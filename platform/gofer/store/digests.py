"""Keyed digests of what was said: a purge leaves them, and to whoever has only the database they say nothing.

A plain hash of a short message is as good as the message: one guesses and compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, bindparam, select, true

from gofer.store.tables import deliveries
from gofer.vault.envelope import Vault

_KEYED = "k1:"
_PAGE = 500


def body_digest(vault: Vault, body: bytes) -> str:
    """What is kept of a delivery's body, so that the same one is known again."""
    return _keyed(vault, hashlib.sha256(body).hexdigest())


def blob_digest(vault: Vault, conversation_id: str, data: bytes) -> str:
    """What a conversation's file is called."""
    return vault.mac_key("blob").digest(conversation_id, hashlib.sha256(data).digest())


def key_body_digests(connection: Connection, vault: Vault, which: ColumnElement[bool] | None = None) -> int:
    """Put keyed digests in the place of plain hashes, which an older release kept; returns how many there were."""
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
