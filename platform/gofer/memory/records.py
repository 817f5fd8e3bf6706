"""Memories and their versions: ids, and the one door through which they are read.

Nothing is overwritten: a change appends a version and ends the one before. Forgetting and restoring are such changes.
The id of a turn is derived from its conversation and number, so every message has one and needs no row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, select

from gofer.errors import GoferError, NotFound
from gofer.integration import Incoming
from gofer.memory.scopes import ScopeKeys, conversation_scope, open_scope
from gofer.sanitize import gist
from gofer.store import fast_sql
from gofer.store.encryption import unseal
from gofer.store.messages import open_stored
from gofer.store.tables import ASIDE, conversations, memories, messages
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

Kind = Literal["turn", "result", "plan", "summary", "note", "rule"]
LIVE, FORGOTTEN = "live", "forgotten"
SUPERSEDED = "superseded"
"""The state shown for a live version that another memory replaced. It is not stored."""
UNREADABLE = "unreadable"
"""The same of a version that does not open: it was damaged, or its key is lost."""
MAX_TEXT = 200_000
"""Characters of one memory."""
_PREFIX, _CONVERSATION = "mem_", "conv_"
_TURN = re.compile(r"mem_([A-Za-z0-9_-]{1,100})\.([1-9][0-9]{0,17})")
_ID = re.compile(r"mem_[a-z0-9]{1,40}")


class UnknownMemory(NotFound):
    """There is no memory with this id that can be recalled here."""

    # The same words for an id of somebody else and for one that was never given: it must not tell which.
    code = "memory.unknown"


class PurgedMemory(NotFound):
    """What this id stood for was purged. Nobody can read it any more."""

    code = "memory.purged"


class ForgottenMemory(NotFound):
    """This was forgotten on somebody's word. It can be restored: gofer memory restore ID."""

    code = "memory.forgotten"


class DamagedMemory(Tampered):
    """This was changed or damaged where it is stored, so nobody can read it. Forget it, or put the database's backup
    back: gofer restore FILE."""

    code = "memory.damaged"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a memory comes from."""

    conversation_id: str | None = None
    message_seq: int | None = None
    job_id: int | None = None
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Covered:
    """Something that a summary stands for."""

    id: str
    gist: str
    to: str = ""
    """The last id, where it is a range of turns."""


@dataclass(frozen=True, slots=True)
class NewMemory:
    """What is to be remembered."""

    kind: Kind
    scope_id: str
    text: str
    trust: str
    source: Source = Source()
    gist: str = ""
    """Made from the text where it is empty."""
    author: str = ""
    untrusted: bool = False
    """Strangers' words are in it: a run that recalls it is narrowed, as by the words themselves."""
    covers: Sequence[Covered] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """One version of a memory, opened."""

    id: str
    version: int
    kind: str
    scope_id: str
    text: str
    gist: str
    trust: str
    author: str = ""
    untrusted: bool = False
    source: Source = Source()
    covers: tuple[Covered, ...] = ()
    supersedes: tuple[str, ...] = ()
    state: str = LIVE
    valid_from: float = 0
    valid_to: float | None = None
    quoted: str = ""
    """Of a turn: somebody else's words that came along."""
    source_gone: bool = False
    """The conversation it came from is purged."""


def turn_id(conversation_id: str, seq: int) -> str:
    """The id of a message, for ever."""
    return f"{_PREFIX}{conversation_id.removeprefix(_CONVERSATION)}.{seq}"


def parse_turn(memory_id: str) -> tuple[str, int] | None:
    """The conversation and number that a turn's id names; None for every other id."""
    found = _TURN.fullmatch(memory_id)
    return (_CONVERSATION + found[1], int(found[2])) if found else None


def rule_id(keys: ScopeKeys, text: str) -> str:
    """The id of a rule of a scope: the same for the same words, so two runs that read them at once keep one rule."""
    return _PREFIX + keys.seal.derive("memory rule id").digest(text)[:24]


def resolve(
    connection: Connection,
    vault: Vault,
    memory_id: str,
    *,
    scopes: Collection[str],
    version: int | None = None,
) -> Memory:
    """The version in force, or another one, if one of `scopes` may know it. Raises UnknownMemory, PurgedMemory or
    ForgottenMemory, and ScopeKeyLost."""
    turn = parse_turn(memory_id)
    if turn is None and not _ID.fullmatch(memory_id):
        raise UnknownMemory
    row = read_row(connection, memory_id, version)
    if row is None:
        return read_turn(connection, vault, memory_id, turn, scopes)
    if row.scope_id not in scopes:
        raise UnknownMemory
    if row.state == FORGOTTEN:
        raise ForgottenMemory
    if turn is not None:  # restored: the message itself holds the words
        return replace(read_turn(connection, vault, memory_id, turn, scopes), version=row.version)
    if row.sealed is None:
        raise PurgedMemory
    return with_sources(connection, [opened(open_scope(connection, vault, row.scope_id), row)])[0]


def superseders(connection: Connection, vault: Vault, scope_id: str) -> dict[str, str]:
    """Which memories of a scope another one took the place of, and which one that is: the last that did."""
    # Whatever takes another's place gets a version for it, so a first version never has.
    query = select(memories).where(
        memories.c.scope_id == scope_id, memories.c.version > 1, memories.c.sealed.is_not(None)
    )
    keys = open_scope(connection, vault, scope_id)
    rows = connection.execute(query.order_by(memories.c.valid_from, memories.c.version)).all()
    return {older: newer.id for newer in readable(keys, rows)[0] for older in newer.supersedes}


def reopen(connection: Connection, vault: Vault, memory_id: str, version: int) -> Memory:
    """A version that a run was given before, whatever became of later ones; raises what `resolve` raises."""
    turn = parse_turn(memory_id)
    if turn is not None:
        return read_turn(connection, vault, memory_id, turn, (conversation_scope(turn[0]),))
    row = read_row(connection, memory_id, version)
    if row is None:
        raise UnknownMemory
    if row.sealed is None:
        raise PurgedMemory
    return opened(open_scope(connection, vault, row.scope_id), row)


def versions(
    connection: Connection, vault: Vault, memory_id: str, *, scopes: Collection[str]
) -> list[Memory]:
    """Every version, oldest first; one that forgets or does not open has no text. Of a message the first needs no row,
    and the message itself holds the words of all others. Raises what `resolve` raises."""
    rows = connection.execute(
        select(memories).where(memories.c.id == memory_id).order_by(memories.c.version)
    ).all()
    turn = parse_turn(memory_id)
    if turn is None and (not rows or rows[0].scope_id not in scopes):
        raise UnknownMemory
    if turn is None and all(row.sealed is None for row in rows):
        raise PurgedMemory
    if turn is None:
        return with_sources(connection, [described(connection, vault, row) for row in rows])
    try:
        said = read_turn(connection, vault, memory_id, turn, scopes)
    except DamagedMemory as error:
        said = replace(damaged_turn(connection, memory_id), gist=str(error), state=UNREADABLE)
    if not rows:
        return [said]
    later = [
        replace(said, version=row.version, valid_from=row.valid_from, valid_to=row.valid_to)
        if row.state == LIVE
        else described(connection, vault, row)
        for row in rows
    ]
    return [replace(said, valid_to=rows[0].valid_from), *later]


def in_force(
    connection: Connection, vault: Vault, scope_id: str, *, kind: Kind, state: str = LIVE
) -> list[Memory]:
    """The memories of one kind that a scope has now, oldest first; forgotten ones as they were said last, and
    those that do not open without words."""
    query = select(memories).where(
        memories.c.scope_id == scope_id,
        memories.c.kind == kind,
        memories.c.valid_to.is_(None),
        memories.c.state == state,
    )
    found = []
    for row in connection.execute(query).all():
        if state == FORGOTTEN:
            last = described(connection, vault, last_said(connection, row.id))
            found.append(replace(last, version=row.version, state=FORGOTTEN))
        elif row.sealed is not None:
            found.append(described(connection, vault, row))
    # By what is sealed: whoever can write to the database could make a note a rule by its column.
    kept = [each for each in found if each.kind == kind]
    return sorted(kept, key=lambda each: (each.source.message_seq or 0, each.valid_from, each.id))


def forgotten_turns(connection: Connection, conversation_id: str) -> set[int]:
    """The numbers of messages that somebody had forgotten."""
    query = select(memories.c.message_seq).where(
        memories.c.scope_id == conversation_scope(conversation_id),
        memories.c.kind == "turn",
        memories.c.valid_to.is_(None),
        memories.c.state == FORGOTTEN,
    )
    return set(connection.execute(query).scalars())


def opened(keys: ScopeKeys, row: Any) -> Memory:
    """A version from its row; raises DamagedMemory for one that was changed or moved."""
    try:
        kept = unseal(keys.seal, row.sealed, *sealed_place(row.scope_id, row.id, row.version))
        about = _gist(keys, row)
    except Tampered:
        raise DamagedMemory from None
    return Memory(
        row.id,
        row.version,
        kept["kind"],
        row.scope_id,
        kept["text"],
        about,
        kept["trust"],
        kept["author"],
        kept["untrusted"],
        Source(**kept["source"]),
        tuple(Covered(**each) for each in kept["covers"]),
        tuple(kept["supersedes"]),
        row.state,
        row.valid_from,
        row.valid_to,
    )


def readable(keys: ScopeKeys, rows: Sequence[Any]) -> tuple[list[Memory], list[str]]:
    """The versions of one scope that open, and the ids of those that do not."""
    found, damaged = [], []
    for row in rows:
        try:
            found.append(opened(keys, row))
        except Tampered:
            damaged.append(str(row.id))
    return found, damaged


def still_damaged(connection: Connection, vault: Vault, scope_id: str, ids: Collection[str]) -> set[str]:
    """Those of some memories that do not open, unless they are forgotten."""
    found = set()
    for memory_id in ids:
        try:
            resolve(connection, vault, memory_id, scopes=(scope_id,))
        except Tampered:
            found.add(memory_id)
        except GoferError:
            continue
    return found


def described(connection: Connection, vault: Vault, row: Any) -> Memory:
    """A version for people, without words where it forgets, is purged or does not open. The author of one that forgets
    is who wanted that; the gist of one that does not open says why."""
    made = from_columns(row)
    try:
        keys = open_scope(connection, vault, row.scope_id)
        if row.sealed is not None:
            return opened(keys, row)
        return replace(made, author=_gist(keys, row))
    except GoferError as error:
        return replace(made, gist=str(error), state=UNREADABLE)


def from_columns(row: Any) -> Memory:
    """What a row says of a version without being opened."""
    return Memory(
        row.id, row.version, row.kind, row.scope_id, "", "", row.trust, state=row.state,
        source=Source(row.conversation_id, row.message_seq, row.job_id, row.call_id),
        valid_from=row.valid_from, valid_to=row.valid_to,
    )  # fmt: skip


def _gist(keys: ScopeKeys, row: Any) -> str:
    place = sealed_place(row.scope_id, row.id, row.version)
    return str(unseal(keys.seal, row.gist, *place, "gist")) if row.gist else ""


def read_turn(
    connection: Connection,
    vault: Vault,
    memory_id: str,
    turn: tuple[str, int] | None,
    scopes: Collection[str],
) -> Memory:
    """A message as the memory that it is; raises what `resolve` raises."""
    if turn is None or conversation_scope(turn[0]) not in scopes:
        raise UnknownMemory
    conversation_id, seq = turn
    row = fast_sql.first(connection, _SAID, {"conversation": conversation_id, "seq": seq})
    if row is None or row.event in ASIDE:
        raise UnknownMemory
    if row.sealed is None:
        raise PurgedMemory
    scope_id = conversation_scope(conversation_id)
    try:
        stored = open_stored(open_scope(connection, vault, scope_id).seal, row)
    except Tampered:
        raise DamagedMemory from None
    said = stored.message
    return Memory(
        memory_id,
        1,
        "turn",
        scope_id,
        said.text,
        gist(said.text) or _without_words(said),
        stored.trust.value,
        said.author.name or said.author.id,
        stored.trust.value in ("stranger", "unknown") or bool(said.quoted and not said.quote_is_ours),
        Source(conversation_id, seq),
        valid_from=row.created_at,
        quoted=said.quoted,
    )


def damaged_turn(connection: Connection, memory_id: str) -> Memory:
    """The record of a message that does not open. Its author is unknown, so it has nobody's trust."""
    if (turn := parse_turn(memory_id)) is None:
        raise UnknownMemory
    conversation_id, seq = turn
    row = fast_sql.first(connection, _SAID, {"conversation": conversation_id, "seq": seq})
    return Memory(
        memory_id, 1, "turn", conversation_scope(conversation_id), "", "", "unknown",
        source=Source(conversation_id, seq), valid_from=row.created_at,
    )  # fmt: skip


_SAID = select(messages).where(
    messages.c.conversation_id == bindparam("conversation"), messages.c.seq == bindparam("seq")
)


def _without_words(said: Incoming) -> str:
    count = len(said.attachments)
    return f"(no text{f', {count} attached' if count else ''})"


def read_row(connection: Connection, memory_id: str, version: int | None) -> Any:
    if version is None:
        return fast_sql.first(connection, _IN_FORCE, {"memory": memory_id})
    query = select(memories).where(memories.c.id == memory_id, memories.c.version == version)
    return connection.execute(query).one_or_none()


_IN_FORCE = (
    select(memories).where(memories.c.id == bindparam("memory")).order_by(memories.c.version.desc()).limit(1)
)


def last_said(connection: Connection, memory_id: str) -> Any:
    """The row of the last version that says something; raises PurgedMemory."""
    query = select(memories).where(memories.c.id == memory_id, memories.c.state == LIVE)
    row = connection.execute(query.order_by(memories.c.version.desc()).limit(1)).first()
    if row is None or row.sealed is None:
        raise PurgedMemory
    return row


def with_sources(connection: Connection, found: Sequence[Memory]) -> list[Memory]:
    """Memories that say whether the conversation they came from is still there."""
    sources = {memory.source.conversation_id for memory in found} - {None}
    query = select(conversations.c.id).where(
        conversations.c.id.in_(sources), conversations.c.purged_at.is_(None)
    )
    gone = sources - set(connection.execute(query).scalars()) if sources else set()
    return [replace(memory, source_gone=memory.source.conversation_id in gone) for memory in found]


def sealed_place(scope_id: str, memory_id: str, version: int) -> tuple[str, str, str, int]:
    """What a version's words are bound to."""
    return "memory", scope_id, memory_id, version
