"""What people and agents do with memories: note something, change it, forget it, bring it back. Each is told in the log
as a `memory.event` without words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from sqlalchemy import Connection, select

from gofer.errors import Conflict, Malformed
from gofer.memory import changes, records
from gofer.memory.records import Kind, Memory, NewMemory, Source
from gofer.memory.scopes import CONVERSATION, split_scope
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
NOT_PINNED = "Only what belongs to a conversation can be pinned: a rule is read by every run there."
OFF = "Memory is switched off (GOFER_MEMORY_V1): no agent recalls or notes anything."


class MemoryOff(Conflict):
    """Memory is switched off: nothing is recalled, and nothing new remembered. Unset GOFER_MEMORY_V1, and restart."""

    code = "memory.off"


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
    connection: Connection,
    vault: Vault,
    memory_id: str,
    *,
    scopes: Collection[str],
    trust: str,
    author: str,
    text: str | None = None,
    pinned: bool | None = None,
) -> Memory:
    """Give a note other words, which leaves the old ones as an older version, or pin it as a standing rule of its
    conversation. Asked twice, it changes nothing twice."""
    before = records.resolve(connection, vault, memory_id, scopes=scopes)
    if pinned and split_scope(before.scope_id)[0] != CONVERSATION:
        raise Conflict(NOT_PINNED)
    kind: Kind | None = "rule" if pinned else "note" if pinned is False and before.kind == "rule" else None
    words = before.text if text is None else clean_note(text)
    if len(words) > MAX_NOTE:
        raise Malformed(f"A note has at most {MAX_NOTE} characters; this has {len(words)}.")
    made = changes.change(
        connection, vault, memory_id, scopes=scopes, text=words, trust=trust, author=author, kind=kind
    )
    if made.version != before.version:
        tell(connection, "update", memory_id, "asked", before=len(before.text), after=len(words))
    return made


def move_memory(
    connection: Connection,
    vault: Vault,
    memory: Memory,
    scope_id: str,
    *,
    trust: str,
    by: str,
    new_id: str | None = None,
) -> Memory:
    """Give a memory another audience, on an owner's word, which the caller has checked. Another audience has another
    key: the words are kept anew there, and the old memory is forgotten."""
    if scope_id == memory.scope_id:
        return memory
    made = keep_note(
        connection,
        vault,
        scope_id=scope_id,
        text=memory.text,
        trust=trust,
        author=memory.author,
        source=memory.source,
        untrusted=memory.untrusted,
        memory_id=new_id,
        reason="audience",
    )
    forget_memory(connection, vault, memory.id, scopes=(memory.scope_id,), by=by, reason="audience")
    return made


def difference(before: str, after: str) -> str:
    """The lines that two versions do not have in common, with a minus or a plus in front."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(list(found)[2:])


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
