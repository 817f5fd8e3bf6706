"""What people and agents do with memories: note something, change it, forget it, bring it back. Each is told in the log
as a `memory.event` without words."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, select

from gofer.errors import Malformed
from gofer.memory import changes, records
from gofer.memory.records import Kind, Memory, NewMemory, Source
from gofer.sanitize import clean
from gofer.store import events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import memories
from gofer.vault.envelope import Vault

EVENT = "memory.event"
NO_SOURCE = Source()
MAX_NOTE = 20_000
"""Characters of a note."""
CHARACTERS_PER_TOKEN = 3.5


def keep_note(
    connection: Connection,
    vault: Vault,
    *,
    scope_id: str,
    text: str,
    trust: str,
    author: str = "",
    source: Source = NO_SOURCE,
    untrusted: bool = False,
    kind: Kind = "note",
    memory_id: str | None = None,
    reason: str = "asked",
    at: float | None = None,
) -> Memory:
    """Keep a note, since now or since the time given. With an id that is there already nothing happens, so it may be
    repeated."""
    if memory_id is not None and (known := _known(connection, vault, memory_id, scope_id)) is not None:
        return known
    words = clean_note(text)
    if not words:
        raise Malformed("There is nothing to remember: the text is empty.")
    if len(words) > MAX_NOTE:
        raise Malformed(
            f"A note has at most {MAX_NOTE} characters; this has {len(words)}. Remember less of it."
        )
    new = NewMemory(kind, scope_id, words, trust, source, author=author, untrusted=untrusted)
    made = changes.remember(connection, vault, new, memory_id=memory_id, at=at)
    tell(connection, "remember", made.id, reason, source.conversation_id, after=len(words))
    return made


_JOINERS = re.compile("(?<=[^\\s\u200b-\u200f])[\u200c\u200d](?=[^\\s\u200b-\u200f])")
_STAND_INS = {"\u200c": "\ue0fc", "\u200d": "\ue0fd"}


def clean_note(text: str) -> str:
    """A note's words, cleaned as all that people write. Joiners stay between two characters beyond ASCII: Persian and
    Hindi words, and emoji of several parts, are spelled with them."""
    text = text.translate(dict.fromkeys(map(ord, _STAND_INS.values())))
    kept = _JOINERS.sub(lambda found: _held(text, found), text)
    words = clean(kept).strip()
    for joiner, stand_in in _STAND_INS.items():
        words = words.replace(stand_in, joiner)
    return words


def _held(text: str, found: re.Match[str]) -> str:
    around = text[found.start() - 1], text[found.end()]
    return "" if any(map(str.isascii, around)) else _STAND_INS[found[0]]


def _known(connection: Connection, vault: Vault, memory_id: str, scope_id: str) -> Memory | None:
    there = select(memories.c.id).where(memories.c.id == memory_id).limit(1)
    if connection.execute(there).scalar() is None:
        return None
    return records.resolve(connection, vault, memory_id, scopes=(scope_id,))


def forget_memory(
    connection: Connection,
    vault: Vault,
    memory_id: str,
    *,
    scopes: Collection[str],
    by: str,
    reason: str = "asked",
) -> int:
    """Forget something, as somebody wants; returns the number of the version that says so."""
    version = changes.forget(connection, vault, memory_id, scopes=scopes, by=by)
    tell(connection, "forget", memory_id, reason)
    return version


def restore_memory(
    connection: Connection, vault: Vault, memory_id: str, *, scopes: Collection[str]
) -> Memory:
    """Bring back what was forgotten."""
    found = changes.restore(connection, vault, memory_id, scopes=scopes)
    tell(connection, "restore", memory_id, "asked")
    return found


def change_memory(
    connection: Connection, vault: Vault, memory_id: str, *, scopes: Collection[str], text: str, **values: Any
) -> Memory:
    """Give a note other words; the old ones stay as an older version."""
    before = records.resolve(connection, vault, memory_id, scopes=scopes)
    words = clean_note(text)
    if len(words) > MAX_NOTE:
        raise Malformed(f"A note has at most {MAX_NOTE} characters; this has {len(words)}.")
    made = changes.change(connection, vault, memory_id, scopes=scopes, text=words, **values)
    tell(connection, "update", memory_id, "asked", before=len(before.text), after=len(words))
    return made


def tell(
    connection: Connection,
    what: str,
    memory_id: str,
    reason: str,
    conversation_id: str | None = None,
    *,
    before: int = 0,
    after: int = 0,
) -> None:
    """Tell the log: what was done to which memory, why, and how many tokens it had before and after."""
    tokens = {
        "tokens_before": int(before / CHARACTERS_PER_TOKEN),
        "tokens_after": int(after / CHARACTERS_PER_TOKEN),
    }
    data = {"what": what, "id": memory_id, "reason": reason, **tokens}
    events.record(connection, EVENT, FIRST_WORKSPACE, conversation_id=conversation_id, data=data)
