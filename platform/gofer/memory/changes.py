"""Versions of memories: remembering, changing, forgetting, restoring.

Nothing is overwritten: a change appends a version and ends the one before. Forgetting and restoring are such changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.errors import Conflict, Malformed
from gofer.memory.records import (
    FORGOTTEN,
    LIVE,
    MAX_TEXT,
    DamagedMemory,
    ForgottenMemory,
    Kind,
    Memory,
    NewMemory,
    Source,
    damaged_turn,
    from_columns,
    last_said,
    opened,
    parse_turn,
    read_row,
    read_turn,
    resolve,
    sealed_place,
)
from gofer.memory.scopes import ScopeKeys, open_scope
from gofer.sanitize import gist
from gofer.store import fast_sql
from gofer.store.db_time import now
from gofer.store.encryption import seal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.tables import memories
from gofer.vault.envelope import Vault


def remember(
    connection: Connection,
    vault: Vault,
    new: NewMemory,
    *,
    memory_id: str | None = None,
    at: float | None = None,
) -> Memory:
    """Keep something, since now or since the time given; returns its first version. With an id that is there already,
    nothing changes. Raises Malformed for a text that is empty or too long."""
    # What a run leaves behind is what it was, and must not fail for it.
    said = new.kind in ("note", "rule", "plan")
    if said and not new.text.strip():
        raise Malformed("There is nothing to remember: the text is empty.")
    if said and len(new.text) > MAX_TEXT:
        raise Malformed(f"A memory has at most {MAX_TEXT} characters; this has {len(new.text)}.")
    keys = open_scope(connection, vault, new.scope_id, create=True)
    made = Memory(
        memory_id or new_id("mem"),
        1,
        new.kind,
        new.scope_id,
        new.text,
        new.gist or gist(new.text),
        new.trust,
        new.author,
        new.untrusted,
        new.source,
        tuple(new.covers),
    )
    return _insert(connection, keys, made, at)


def change(
    connection: Connection,
    vault: Vault,
    memory_id: str,
    *,
    scopes: Collection[str],
    text: str,
    trust: str,
    author: str = "",
    kind: Kind | None = None,
    expected: int | None = None,
) -> Memory:
    """UPDATE: a new version of a note, a rule, a plan or a summary, in the words of somebody else perhaps; raises
    Conflict when `expected` is not the version in force any more."""
    before = resolve(connection, vault, memory_id, scopes=scopes)
    if before.kind in ("turn", "result"):
        raise Conflict("What was said and what a tool gave cannot be changed. Forget it, or add a note.")
    if before.valid_to is not None:
        raise Conflict("Something newer took its place. Restore it first, then change it.")
    if not text.strip() or len(text) > MAX_TEXT:
        raise Malformed(f"A memory has 1 to {MAX_TEXT} characters.")
    if expected is not None and before.version != expected:
        raise Conflict(f"It has changed meanwhile: version {before.version} is in force, not {expected}.")
    if (text, kind or before.kind, trust) == (before.text, before.kind, before.trust):
        return before  # asked twice
    made = replace(
        before,
        version=before.version + 1,
        kind=kind or before.kind,
        text=text,
        gist=gist(text),
        trust=trust,
        author=author or before.author,
        valid_to=None,
    )
    _end(connection, memory_id, before.version)
    return _insert(connection, open_scope(connection, vault, before.scope_id), made)


def forget(
    connection: Connection, vault: Vault, memory_id: str, *, scopes: Collection[str], by: str = ""
) -> int:
    """Append a version that says nothing but who had it forgotten; the one before stays and can be restored. Also
    what does not open can be forgotten. Returns the new version's number. Forgetting what is forgotten changes
    nothing."""
    _lock_turn(connection, memory_id)
    try:
        before = resolve(connection, vault, memory_id, scopes=scopes)
    except ForgottenMemory:
        return int(read_row(connection, memory_id, None).version)
    except DamagedMemory:
        row = read_row(connection, memory_id, None)
        before = from_columns(row) if row is not None else damaged_turn(connection, memory_id)
    if before.valid_to is None:
        _end(connection, memory_id, before.version)
    _append(connection, open_scope(connection, vault, before.scope_id), before, FORGOTTEN, by)
    return before.version + 1


def restore(connection: Connection, vault: Vault, memory_id: str, *, scopes: Collection[str]) -> Memory:
    """Bring back what was said last before it was forgotten, or before something newer took its place; raises Conflict
    for what is in force."""
    _lock_turn(connection, memory_id)
    row = read_row(connection, memory_id, None)
    if row is None or row.scope_id not in scopes:
        resolve(connection, vault, memory_id, scopes=scopes)  # which says why not
        raise Conflict("This is not forgotten.")
    superseded = row.state == LIVE and row.valid_to is not None
    if row.state != FORGOTTEN and not superseded:
        raise Conflict("This is not forgotten.")
    turn = parse_turn(memory_id)
    if turn is not None:
        before = replace(read_turn(connection, vault, memory_id, turn, scopes), version=row.version)
        _end(connection, memory_id, row.version)
        _append(connection, open_scope(connection, vault, row.scope_id), before, LIVE)
        return replace(before, version=row.version + 1)
    keys = open_scope(connection, vault, row.scope_id)
    before = opened(keys, last_said(connection, memory_id))
    made = replace(before, version=row.version + 1, valid_to=None)
    if not superseded:
        _end(connection, memory_id, row.version)
    return _insert(connection, keys, made)


def say_again(connection: Connection, vault: Vault, before: Memory, source: Source) -> Memory:
    """A new version of the same words, because somebody has said them again; also of what was forgotten."""
    made = replace(before, version=before.version + 1, source=source, state=LIVE, valid_to=None)
    _end(connection, before.id, before.version)
    return _insert(connection, open_scope(connection, vault, before.scope_id), made)


def supersede(connection: Connection, vault: Vault, newer: Memory, older: Memory) -> Memory:
    """Let one memory take another's place: the older one ends, and can still be read by its id and restored. Raises
    Conflict when one of them has changed since."""
    made = replace(newer, version=newer.version + 1, supersedes=(*newer.supersedes, older.id), valid_to=None)
    _end(connection, older.id, older.version)
    _end(connection, newer.id, newer.version)
    return _insert(connection, open_scope(connection, vault, newer.scope_id), made, newer.valid_from)


def set_gist(connection: Connection, vault: Vault, memory: Memory, gist: str) -> bool:
    """Say in other words what a version is about; its own words stay. False when it is not in force any more."""
    keys = open_scope(connection, vault, memory.scope_id)
    sealed = seal(keys.seal, gist, *sealed_place(memory.scope_id, memory.id, memory.version), "gist")
    here = (memories.c.id == memory.id) & (memories.c.version == memory.version)
    changed = connection.execute(
        update(memories)
        .where(here, memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .values(gist=sealed)
    )
    return changed.rowcount == 1


def _insert(connection: Connection, keys: ScopeKeys, made: Memory, at: float | None = None) -> Memory:
    """Write a version, since now or since the time given; returns it with that time."""
    place = sealed_place(made.scope_id, made.id, made.version)
    kept = {
        "text": made.text,
        "kind": made.kind,
        "trust": made.trust,
        "author": made.author,
        "untrusted": made.untrusted,
        "source": made.source,
        "covers": made.covers,
        "supersedes": made.supersedes,
    }
    columns: dict[str, Any] = {
        "sealed": seal(keys.seal, kept, *place),
        "gist": seal(keys.seal, made.gist, *place, "gist"),
        "size": len(made.text),
    }
    if at is not None:
        columns["valid_from"] = at
    row = _columns(made, made.version, LIVE) | columns
    connection.execute(
        fast_sql.upsert(connection.dialect.name, memories).values(row).on_conflict_do_nothing()
    )
    if at is None:
        here = (memories.c.id == made.id) & (memories.c.version == made.version)
        at = connection.execute(select(memories.c.valid_from).where(here)).scalar_one()
    return replace(made, valid_from=at)


def _append(connection: Connection, keys: ScopeKeys, before: Memory, state: str, by: str = "") -> None:
    """A version without words of its own; in the place of what it is about stands who wanted it."""
    version = before.version + 1
    who = seal(keys.seal, by, *sealed_place(before.scope_id, before.id, version), "gist") if by else None
    row = _columns(before, version, state) | {"sealed": None, "gist": who, "size": 0}
    connection.execute(
        fast_sql.upsert(connection.dialect.name, memories).values(row).on_conflict_do_nothing()
    )


def _columns(made: Memory, version: int, state: str) -> dict[str, Any]:
    return {
        "id": made.id,
        "version": version,
        "scope_id": made.scope_id,
        "kind": made.kind,
        "state": state,
        "conversation_id": made.source.conversation_id,
        "message_seq": made.source.message_seq,
        "job_id": made.source.job_id,
        "call_id": made.source.call_id,
        "trust": made.trust,
        "valid_from": now(),
        "valid_to": None,
    }


def _end(connection: Connection, memory_id: str, version: int) -> None:
    """End the version in force; raises Conflict when another one is in force than `version`."""
    here = (memories.c.id == memory_id) & (memories.c.version == version) & memories.c.valid_to.is_(None)
    ended = connection.execute(update(memories).where(here).values(valid_to=now())).rowcount
    if not ended and parse_turn(memory_id) is None:
        raise Conflict("It has changed meanwhile. Look at it again, then change it.")


def _lock_turn(connection: Connection, memory_id: str) -> None:
    """A turn has no row that two writers could meet at, so they meet at its conversation's."""
    if (turn := parse_turn(memory_id)) is not None:
        lock_conversation(connection, turn[0])
