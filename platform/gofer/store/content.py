"""A message's words and facts as they are sealed into its row."""

from __future__ import annotations

import dataclasses
from typing import Any

from gofer.integration import Attachment, Author, Incoming
from gofer.store.sealing import seal, unseal
from gofer.vault.envelope import DataKey


def seal_message(key: DataKey, conversation_id: str, seq: int, message: Incoming) -> bytes:
    """The sealed form of a message in its place."""
    return seal(key, message, "message", conversation_id, seq)


_NAMES = {field.name for field in dataclasses.fields(Incoming)}


def open_message(key: DataKey, conversation_id: str, seq: int, sealed: bytes) -> Incoming:
    """What `seal_message` sealed, also by an older version."""
    value: dict[str, Any] = unseal(key, sealed, "message", conversation_id, seq)
    kept = {name: item for name, item in value.items() if name in _NAMES}
    kept["author"] = Author(**value["author"])
    kept["attachments"] = tuple(Attachment(**item) for item in value.get("attachments", ()))
    return Incoming(**kept)
