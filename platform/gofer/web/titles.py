"""Titles of web chat conversations: their first words, the same on every page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from gofer.app import Platform
from gofer.goals.requests import GOAL_MESSAGE
from gofer.store.encryption import data_key
from gofer.store.messages import open_readable
from gofer.store.tables import conversations, messages
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer.web.auth import Visitor, readable

WEB = "web"
"""The kind of conversation that nobody has named."""
MAX_TITLE = 60
UNTITLED = "New conversation"
UNREADABLE = "A private conversation"

BEGUN = (conversations.c.kind != WEB) | (conversations.c.last_seq > 0)
"""Excludes rooms that somebody opened and wrote nothing in."""


async def with_titles(
    platform: Platform, rows: Sequence[dict[str, Any]], visitor: Visitor, by: str = "conversation_id"
) -> list[dict[str, Any]]:
    """Rows with a `title`; a web chat conversation is titled by its first words, one that they may not read by none."""
    wanted = {row[by] for row in rows if row[by]}

    def read(connection: Connection) -> dict[str, str]:
        query = select(conversations.c.id).where(
            conversations.c.id.in_(wanted), readable(connection, visitor)
        )
        seen = set(connection.execute(query).scalars())
        titles = titles_of(connection, platform.vault, platform.redactor, seen)
        return {**dict.fromkeys(wanted - seen, UNREADABLE), **titles}

    found = await platform.database.read(read)
    return [{**row, "title": found.get(row[by], row["title"])} for row in rows]


def titles_of(
    connection: Connection, vault: Vault, redactor: Redactor, wanted: Iterable[str]
) -> dict[str, str]:
    """Titles of the web chat's conversations that are not purged."""
    query = select(conversations.c.id, conversations.c.data_key).where(
        conversations.c.id.in_(list(wanted)),
        conversations.c.kind == WEB,
        conversations.c.data_key.is_not(None),
    )
    return {
        row.id: _title(connection, vault, redactor, row.id, row.data_key)
        for row in connection.execute(query).all()
    }


def _title(
    connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str, wrapped: bytes
) -> str:
    """The first words, read from the sealed message each time: they are stored nowhere else."""
    query = (
        select(messages)
        .where(messages.c.conversation_id == conversation_id, messages.c.event.in_(("message", GOAL_MESSAGE)))
        .order_by(messages.c.seq)
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None or row.sealed is None:
        return UNTITLED
    first = open_readable(data_key(vault, conversation_id, wrapped), [row])
    if not first:
        return UNTITLED
    message = first[0].message
    # Masked before it is cut: half a secret would not be known for one.
    said = redactor.redact(message.text)
    words = " ".join(said.split()) or ", ".join(file.name for file in message.attachments)
    return words[:MAX_TITLE] + ("…" if len(words) > MAX_TITLE else "") or UNTITLED
