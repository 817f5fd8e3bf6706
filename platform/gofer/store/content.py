"""A message's words and facts as they are sealed into its row."""

from __future__ import annotations

import dataclasses
from typing import Any

from gofer.integration import Attachment, Author, Incoming
from gofer.store.encryption import seal, unseal
from gofer.store.tables import Trust
from gofer.vault.envelope import DataKey

_STORED = {
    "stable_id": "lasting",
    "group_id": "joins",
    "replaces_id": "replaces",
    "quote_is_ours": "quoted_here",
}
"""What fields are called in sealed content, where that is not their name: stored names never change."""
_NAMES = {_STORED.get(field.name, field.name): field.name for field in dataclasses.fields(Incoming)}
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
    """The sealed form of a message in its place, with its author's trust once that is known, and the connection it came
    by, which decides who its author is."""
    content = {stored: getattr(message, name) for stored, name in _NAMES.items()}
    if trust is not Trust.UNKNOWN:
        content[_TRUST] = trust
    if came_by is not None:
        content[_CAME_BY] = came_by
    return seal(key, content, "message", conversation_id, seq)


def open_message(key: DataKey, conversation_id: str, seq: int, sealed: bytes) -> Incoming:
    """What `seal_message` sealed, also by an older version."""
    return _message(unseal(key, sealed, "message", conversation_id, seq))


def open_trusted(key: DataKey, row: Any) -> tuple[Incoming, Trust, str | None]:
    """A message's row with the trust and the connection that are sealed into it. The row's own are only for looking
    messages up: whoever can write to the database can change them. The trust is unknown for a message that was not
    admitted, or by a release that did not seal it; such a one's connection is the row's."""
    value: dict[str, Any] = unseal(key, row.sealed, "message", row.conversation_id, row.seq)
    return _message(value), Trust(value.get(_TRUST, Trust.UNKNOWN)), value.get(_CAME_BY, row.connection_id)


def _message(value: dict[str, Any]) -> Incoming:
    kept = {_NAMES[stored]: item for stored, item in value.items() if stored in _NAMES}
    kept["author"] = Author(**value["author"])
    kept["attachments"] = tuple(Attachment(**item) for item in value.get("attachments", ()))
    return Incoming(**kept)
