"""Bytes by keyed digest, sealed with their conversation's key."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from gofer.errors import NotFound
from gofer.store.db_time import now
from gofer.store.encryption import blob_digest, conversation_key
from gofer.store.tables import blobs
from gofer.vault.envelope import Vault, aad


def put_blob(connection: Connection, vault: Vault, conversation_id: str, data: bytes, media_type: str) -> str:
    """Keep bytes; returns their digest. The same bytes again are the same blob."""
    digest = blob_digest(vault, conversation_id, data)
    known = select(blobs.c.hash).where(blobs.c.conversation_id == conversation_id, blobs.c.hash == digest)
    if connection.execute(known).first() is None:
        key = conversation_key(connection, vault, conversation_id)
        connection.execute(
            _PUT,
            {
                "conversation_id": conversation_id,
                "hash": digest,
                "media_type": media_type,
                "size": len(data),
                "sealed": key.seal(data, aad("blob", conversation_id, digest)),
            },
        )
    return digest


# Its values are given apart: SQLAlchemy would remember those of a statement, for as long as that itself.
_PUT = insert(blobs).values(created_at=now())


def read_blob(connection: Connection, vault: Vault, conversation_id: str, digest: str) -> bytes:
    """A blob's bytes; raises NotFound."""
    query = select(blobs.c.sealed).where(blobs.c.conversation_id == conversation_id, blobs.c.hash == digest)
    sealed = connection.execute(query).scalar()
    if sealed is None:
        raise NotFound(f"There is no blob {digest[:12]}….")
    return conversation_key(connection, vault, conversation_id).open(
        sealed, aad("blob", conversation_id, digest)
    )
