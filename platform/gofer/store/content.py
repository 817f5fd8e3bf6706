"""A message's words and facts as they are sealed into its row."""

from __future__ import annotations

import dataclasses
from typing import Any

from gofer.integration import Attachment, Author, Incoming
from gofer.store.sealing import seal, unseal
from gofer.vault.envelope import DataKey


def seal_message(key: DataKey, conversation_id: str, seq: int, message: Incoming) -> bytes:
    """The sealed form of a message in its place."""
    value = _as_dict(message) | {
        "author": _as_dict(message.author),
        "attachments": [_as_dict(attachment) for attachment in message.attachments],
    }
    return seal(key, value, "message", conversation_id, seq)


def _as_dict(item: Any) -> dict[str, Any]:
    """Not `dataclasses.asdict`, which copies every value deeply and takes longer than the sealing."""
    return {name: getattr(item, name) for name in _NAMES[type(item)]}


_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in (Incoming, Author, Attachment)
}


def open_message(key: DataKey, conversation_id: str, seq: int, sealed: bytes) -> Incoming:
    """What `seal_message` sealed, also by an older version."""
    value: dict[str, Any] = unseal(key, sealed, "message", conversation_id, seq)
    kept = {name: item for name, item in value.items() if name in _NAMES[Incoming]}
    kept["author"] = Author(**value["author"])
    kept["attachments"] = tuple(Attachment(**item) for item in value.get("attachments", ()))
    return Incoming(**kept)
