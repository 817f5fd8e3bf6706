"""Messages as their rows hold them, sealed, and the bindings between conversations and their places outside."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from gofer.integration import Attachment, Author, Incoming
from gofer.store import fast_sql
from gofer.store.encryption import seal, unseal
from gofer.store.tables import Trust, bindings
from gofer.vault.envelope import DataKey
from gofer.vault.errors import Tampered

_STORED = {
    "stable_id": "lasting",
    "group_id": "joins",
    "replaces_id": "replaces",
    "quote_is_ours": "quoted_here",
}
"""Names of fields in sealed content that differ from their names here: stored names never change."""
_NAMES = {_STORED.get(field.name, field.name): field.name for field in dataclasses.fields(Incoming)}
DAMAGED = "(This message was changed or damaged where it is stored, so nobody can read it.)"
"""What people read in the place of such a message."""
_TRUST = "trust"
_CAME_BY = "came_by"


def seal_message(
    key: DataKey,
    conversation_id: str,
    seq: int,
    message: Incoming,
    trust: Trust = Trust.UNKNOWN,
    *,
    came_by: str | None = None,
) -> bytes:
    """Seal a message for its row, with its author's trust once that is known, and with the connection it came by,
    which decides who its author is."""
    content = {stored: getattr(message, name) for stored, name in _NAMES.items()}
    if trust is not Trust.UNKNOWN:
        content[_TRUST] = trust
    if came_by is not None:
        content[_CAME_BY] = came_by
    return seal(key, content, "message", conversation_id, seq)


def open_message(key: DataKey, conversation_id: str, seq: int, sealed: bytes) -> Incoming:
    """Open what `seal_message` sealed, also by an older version."""
    return _message(unseal(key, sealed, "message", conversation_id, seq))


def open_for_people(key: DataKey, row: Any) -> Incoming:
    """A message's row, opened; one that was changed or damaged says so in the place of its words."""
    try:
        return open_message(key, row.conversation_id, row.seq, row.sealed)
    except Tampered:
        return Incoming("", Author(row.author), DAMAGED, row.addressed)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its number, its author's trust and the connection it came by."""

    seq: int
    message: Incoming
    trust: Trust
    connection_id: str | None


def open_stored(key: DataKey, row: Any) -> StoredMessage:
    """Open a message's row with the trust and the connection that are sealed into it.

    The row's own columns are for look-ups only: whoever can write to the database can change them. The trust of a
    message is unknown until it is admitted. Older releases sealed neither; the connection is then the row's.
    """
    value = open_content(key, row)
    trust = Trust(value.get(_TRUST, Trust.UNKNOWN))
    return StoredMessage(row.seq, _message(value), trust, value.get(_CAME_BY, row.connection_id))


def open_readable(key: DataKey, rows: Iterable[Any]) -> list[StoredMessage]:
    """Those of some messages that open: the others were changed or damaged."""
    found = []
    for row in rows:
        with contextlib.suppress(Tampered):
            found.append(open_stored(key, row))
    return found


def open_content(key: DataKey, row: Any) -> dict[str, Any]:
    """What a message's row holds, by the stored names of its fields. For a prompt, which has hundreds of messages, it
    costs a third of `open_stored`."""
    content: dict[str, Any] = unseal(key, row.sealed, "message", row.conversation_id, row.seq)
    return content


def _message(value: dict[str, Any]) -> Incoming:
    kept = {_NAMES[stored]: item for stored, item in value.items() if stored in _NAMES}
    kept["author"] = Author(**value["author"])
    kept["attachments"] = tuple(Attachment(**item) for item in value.get("attachments", ()))
    return Incoming(**kept)


def column_text(text: str) -> str:
    """Text for a clear column; Postgres stores no NUL."""
    return text.replace("\x00", "")[:1000]


def binding_at(connection: Connection, connection_id: str, ref: str) -> Row[Any] | None:
    """The binding of a place outside: its id, conversation_id and lasting."""
    found: Row[Any] | None = fast_sql.first(connection, _BINDING_AT, {"via": connection_id, "at": ref})
    return found


_BINDING_AT = select(bindings.c.id, bindings.c.conversation_id, bindings.c.lasting).where(
    bindings.c.connection_id == bindparam("via"), bindings.c.ref == bindparam("at")
)


def binding_of(connection: Connection, conversation_id: str | None, connection_id: str | None) -> str | None:
    """The id of a conversation's first binding with a connection, or with any when none is named."""
    found: str | None = fast_sql.scalar(
        connection,
        _BINDING_OF[connection_id is not None],
        {"conversation": conversation_id, "via": connection_id},
    )
    return found


def _binding_of(*conditions: Any) -> Any:
    here = bindings.c.conversation_id == bindparam("conversation")
    return select(bindings.c.id).where(here, *conditions).order_by(bindings.c.id).limit(1)


_BINDING_OF = {True: _binding_of(bindings.c.connection_id == bindparam("via")), False: _binding_of()}
