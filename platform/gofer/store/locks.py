"""The lock of a conversation: it makes two transactions agree on which message is the last."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from gofer.store import fast_sql
from gofer.store.tables import conversations


def lock_conversation(connection: Connection, conversation_id: str) -> None:
    """Take the lock that intake and the end of a job share. Take it first, then read."""
    fast_sql.fetch(connection, _LOCK, {"conversation": conversation_id})


_LOCK = select(conversations.c.id).where(conversations.c.id == bindparam("conversation")).with_for_update()
