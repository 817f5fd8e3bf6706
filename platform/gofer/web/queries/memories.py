"""Memories as people see them: who may see which, lists, searches, versions, and changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, exists, select

from gofer.app import Platform
from gofer.errors import Conflict, Forbidden, NotFound
from gofer.identity import WEB_CHAT, known_principal
from gofer.memory import notes, records
from gofer.memory.audience import OWNERS_WORD
from gofer.memory.notes import OFF, MemoryOff
from gofer.memory.recall import ALL, EXAMINED_AT_START, advice, indexed_scopes, lost_keys, reindex
from gofer.memory.records import FORGOTTEN, LIVE, SUPERSEDED, UNREADABLE, Memory, Source, UnknownMemory
from gofer.memory.scopes import AGENT, CONVERSATION, PERSON, ScopeKeyLost, conversation_scope, split_scope
from gofer.memory.transfer import (
    ImportedNote,
    UnfitFile,
    export_notes,
    keep_import,
    parse_import,
    scope_here,
)
from gofer.sanitize import clean
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import agents, conversations, memories, principals
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, is_readable, readable
from gofer.web.auth.members import oldest_owner
from gofer.web.queries.conversations import list_conversations

MAX_SCOPES = 30_000
"""Audiences that a statement can name on every database."""
MAX_SEARCHED = 1000
"""Audiences that are searched at once: people and agents, then the newest conversations."""
NOT_SEARCHED = (
    "{count} older conversations were not searched. Say which one to search, as the audience conversation:ID."
)
IMPORTED_AT_ONCE = 50
"""Memories of an import in one transaction."""
MAX_PEOPLE = 20
"""How many people an error names."""
MAX_NAMED = 10
"""The same of audiences of a file."""
OWNER_MOVES = "Only an owner may change who hears of something."
KINDS = ("note", "rule", "plan", "summary", "result")


def visible_scopes(connection: Connection, visitor: Visitor) -> list[str]:
    """The scopes whose memories somebody may see. An owner sees all of them, as they see every conversation. Others see
    what agents may tell everybody, their own, and conversations that are not somebody else's in private. A token that
    is bound to an agent sees those of the agent's conversations."""
    if visitor.agent:
        heard = list_conversations(connection, limit=MAX_SCOPES, visitor=visitor)
        return [conversation_scope(each["id"]) for each in heard]
    noted = [str(each) for each in connection.execute(select(memories.c.scope_id).distinct()).scalars()]
    first = [each for each in noted if split_scope(each)[0] != CONVERSATION]
    found = list(dict.fromkeys([*first, *indexed_scopes(connection), *noted]))[:MAX_SCOPES]
    if visitor.may("owner"):
        return found
    own = _own_principal(connection, visitor)
    open_rooms = select(conversations.c.id).where(readable(connection, visitor))
    rooms = {conversation_scope(str(each)) for each in connection.execute(open_rooms).scalars()}
    return [
        each
        for each in found
        if each in rooms
        or (split_scope(each)[0] != CONVERSATION and _is_open_to(connection, each, visitor, own))
    ]


def may_see(connection: Connection, visitor: Visitor, scope_id: str) -> bool:
    """Whether somebody may see the memories of a scope, by whichever door they come."""
    kind, whose = split_scope(scope_id)
    if visitor.agent:
        return kind == CONVERSATION and is_readable(connection, whose, visitor)
    own = _own_principal(connection, visitor)
    return visitor.may("owner") or _is_open_to(connection, scope_id, visitor, own)


def _own_principal(connection: Connection, visitor: Visitor) -> str:
    """The id of the person who asks. The command line speaks for the first owner, here as elsewhere."""
    member_id = visitor.member_id
    if not member_id and (owner := oldest_owner(connection)) is not None:
        member_id = owner.id
    who = known_principal(connection, FIRST_WORKSPACE, WEB_CHAT, member_id)
    return str(who.id) if who is not None else ""


def _is_open_to(connection: Connection, scope_id: str, visitor: Visitor, own: str) -> bool:
    kind, whose = split_scope(scope_id)
    if kind == AGENT:
        return True
    if kind == PERSON:
        return bool(own) and whose == own
    return is_readable(connection, whose, visitor)


def allowed(connection: Connection, visitor: Visitor, scope_id: str) -> list[str]:
    """One scope, or all that somebody may see; raises NotFound for one that they may not."""
    if not scope_id:
        return visible_scopes(connection, visitor)
    split_scope(scope_id)
    if not (_exists(connection, scope_id) and may_see(connection, visitor, scope_id)):
        raise NotFound(f"Nothing is remembered for {scope_id[:80]!r}.")
    return [scope_id]


def _exists(connection: Connection, scope_id: str) -> bool:
    kind, whose = split_scope(scope_id)
    table = {CONVERSATION: conversations, PERSON: principals, AGENT: agents}[kind]
    return connection.execute(select(table.c.id).where(table.c.id == whose)).scalar() is not None


def named_scope(connection: Connection, visitor: Visitor, scope_id: str) -> str:
    """A scope by its id, where it has an agent's name or `me` in its place."""
    kind, whose = split_scope(scope_id)
    if scope_id == f"{PERSON}:me":
        return f"{PERSON}:{_own_principal(connection, visitor) or 'me'}"
    if kind == AGENT and not whose.startswith("agent_"):
        found = connection.execute(select(agents.c.id).where(agents.c.name == whose)).scalar()
        return f"{AGENT}:{found}" if found else scope_id
    return scope_id


def list_memories(
    connection: Connection, vault: Vault, *, scopes: Collection[str], kind: str = "", limit: int = 50
) -> list[dict[str, Any]]:
    """The timeline: what was noted, newest first. What was forgotten is there without its words, and what something
    newer took the place of says what that is."""
    newer = memories.alias()
    last = ~exists().where(newer.c.id == memories.c.id, newer.c.version > memories.c.version)
    query = (
        select(memories)
        .where(memories.c.scope_id.in_(scopes), last)
        .where(memories.c.kind == kind if kind else memories.c.kind.in_(KINDS))
        # A message that was restored is a message like any other.
        .where((memories.c.kind != "turn") | (memories.c.state != LIVE))
        .order_by(memories.c.valid_from.desc(), memories.c.id)
        .limit(limit)
    )
    found = [records.described(connection, vault, row) for row in connection.execute(query).all()]
    listed = [describe(memory) for memory in records.with_sources(connection, found)]
    return _with_superseders(connection, vault, listed)


def _with_superseders(
    connection: Connection, vault: Vault, found: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Say which memory took the place of those that were superseded."""
    scopes = {each["scope"] for each in found if each["state"] == SUPERSEDED}
    by = {scope_id: records.superseders(connection, vault, scope_id) for scope_id in scopes}
    return [
        {**each, "superseded_by": by[each["scope"]].get(each["id"])} if each["state"] == SUPERSEDED else each
        for each in found
    ]


def _state(memory: Memory) -> str:
    """What people are told of the last version of a memory."""
    if memory.state != LIVE:
        return memory.state
    if not memory.text and memory.kind != "turn":
        return UNREADABLE
    return SUPERSEDED if memory.valid_to is not None else LIVE


def describe(memory: Memory, score: float | None = None) -> dict[str, Any]:
    """The last version of a memory, for people."""
    return {
        "id": memory.id,
        "version": memory.version,
        "kind": memory.kind,
        "scope": memory.scope_id,
        "state": _state(memory),
        "superseded_by": None,
        "gist": memory.gist,
        "text": memory.text,
        "author": memory.author,
        "trust": memory.trust,
        "conversation_id": memory.source.conversation_id,
        "message_seq": memory.source.message_seq,
        "job_id": memory.source.job_id,
        "source_gone": memory.source_gone,
        "score": None if score is None else round(score, 3),
        "at": memory.valid_from,
    }


async def find(
    platform: Platform, visitor: Visitor, *, query: str, scope_id: str, kind: str, limit: int
) -> dict[str, Any]:
    """A search, or the timeline where nothing is searched for; what could not be read, and what to do about that."""
    scopes = await platform.database.read(_allowed_by_name, visitor=visitor, scope_id=scope_id)
    if not query.strip():
        listed = await platform.database.read(
            list_memories, vault=platform.vault, scopes=scopes, kind=kind, limit=limit
        )
        known = platform.recall.degraded
        return _found(platform, listed, {each: known[each] for each in (*scopes, ALL) if each in known})
    results = await platform.recall.search(scopes[:MAX_SEARCHED], query, limit, kind)
    found = _found(platform, [describe(each.memory, each.score) for each in results.found], results.degraded)
    if len(scopes) > MAX_SEARCHED:
        found["problems"].append(NOT_SEARCHED.format(count=len(scopes) - MAX_SEARCHED))
    return found


def _found(platform: Platform, found: list[dict[str, Any]], degraded: dict[str, str]) -> dict[str, Any]:
    problems = [] if platform.settings.memory_v1 else [OFF]
    problems += [advice(scope_id, why) for scope_id, why in sorted(degraded.items())]
    return {"memories": found, "degraded": sorted(degraded), "problems": problems}


def _allowed_by_name(connection: Connection, visitor: Visitor, scope_id: str) -> list[str]:
    return allowed(connection, visitor, named_scope(connection, visitor, scope_id) if scope_id else "")


def _scopes_of(connection: Connection, visitor: Visitor, memory_id: str) -> tuple[str, ...]:
    """The scope of one memory, if somebody may see it; raises UnknownMemory as for an id that was never given."""
    turn = records.parse_turn(memory_id)
    row = connection.execute(select(memories.c.scope_id).where(memories.c.id == memory_id).limit(1)).first()
    scope_id = row.scope_id if row is not None else conversation_scope(turn[0]) if turn is not None else ""
    if not scope_id or not may_see(connection, visitor, scope_id):
        raise UnknownMemory
    return (scope_id,)


def show(connection: Connection, vault: Vault, visitor: Visitor, memory_id: str) -> dict[str, Any]:
    """One memory with all its versions and what changed from one to the next."""
    scopes = _scopes_of(connection, visitor, memory_id)
    found = records.versions(connection, vault, memory_id, scopes=scopes)
    versions = []
    before = ""
    for each in found:
        # Whatever came after, an older version is one that said something, or one that forgot.
        state = {"state": each.state} if each is not found[-1] else {}
        diff = notes.difference(before, each.text)
        versions.append({**describe(each), **state, "until": each.valid_to, "diff": diff})
        before = each.text or before
    (versions[-1],) = _with_superseders(connection, vault, versions[-1:])
    return {**versions[-1], "versions": versions}


def add(
    connection: Connection, platform: Platform, visitor: Visitor, *, scope_id: str, text: str
) -> dict[str, Any]:
    """Note something for a scope. For everybody an agent talks to it takes an owner."""
    return describe(note(connection, platform, visitor, scope_id=scope_id, text=text, author=visitor.name))


def check_memory_on(platform: Platform) -> None:
    """Raises MemoryOff where memory is switched off."""
    if not platform.settings.memory_v1:
        raise MemoryOff


def note(
    connection: Connection, platform: Platform, visitor: Visitor, *, scope_id: str, text: str, author: str
) -> Memory:
    """Note something for a scope. What a token of an agent notes is a program's word, and kept as untrusted."""
    check_memory_on(platform)
    scope_id = _writable(connection, visitor, scope_id)
    return notes.keep_note(
        connection,
        platform.vault,
        scope_id=scope_id,
        text=text,
        trust=_trust(visitor),
        author=author,
        source=_source(scope_id),
        untrusted=bool(visitor.agent),
    )


def _source(scope_id: str) -> Source:
    kind, whose = split_scope(scope_id)
    return Source(conversation_id=whose) if kind == CONVERSATION else notes.NO_SOURCE


def _writable(connection: Connection, visitor: Visitor, scope_id: str) -> str:
    scope_id = named_scope(connection, visitor, scope_id)
    kind, whose = split_scope(scope_id)
    if not _exists(connection, scope_id) or not may_see(connection, visitor, scope_id):
        known = _known_people(connection, visitor) if kind == PERSON else ""
        nobody = " Nobody has signed in yet. Run: gofer link" if kind == PERSON and not known else ""
        raise NotFound(f"There is no {kind} {whose[:60]!r}.{known}{nobody}")
    if kind == AGENT and not visitor.may("owner"):
        raise Forbidden(OWNERS_WORD)
    return scope_id


def _known_people(connection: Connection, visitor: Visitor) -> str:
    """A sentence with the ids of people: for an owner of everybody, for others their own."""
    query = select(principals.c.id, principals.c.name).order_by(principals.c.created_at).limit(MAX_PEOPLE)
    if not visitor.may("owner"):
        query = query.where(principals.c.id == _own_principal(connection, visitor))
    people = [f"{row.id} ({clean(row.name)[:40]})" for row in connection.execute(query).all()]
    return f" People are named by their ids: {', '.join(people)}." if people else ""


def _trust(visitor: Visitor) -> str:
    return "stranger" if visitor.agent else "owner" if visitor.may("owner") else "member"


def change(
    connection: Connection,
    vault: Vault,
    visitor: Visitor,
    memory_id: str,
    *,
    text: str | None,
    pinned: bool | None,
    scope_id: str | None,
) -> dict[str, Any]:
    """Give a memory other words, pin it as a standing rule of its conversation, or another audience."""
    scopes = _writable_scopes(connection, visitor, memory_id)
    # Whoever may not do all of it changes nothing.
    if scope_id is not None and not visitor.may("owner"):
        raise Forbidden(OWNER_MOVES)
    trust, by = _trust(visitor), visitor.name
    if text is None and pinned is None:
        made = records.resolve(connection, vault, memory_id, scopes=scopes)
    else:
        made = notes.change_memory(
            connection, vault, memory_id, scopes=scopes, trust=trust, author=by, text=text, pinned=pinned
        )
    if scope_id is not None:
        target = _writable(connection, visitor, scope_id)
        made = notes.move_memory(connection, vault, made, target, trust=trust, by=by)
    return describe(made)


def _writable_scopes(connection: Connection, visitor: Visitor, memory_id: str) -> tuple[str, ...]:
    (scope_id,) = _scopes_of(connection, visitor, memory_id)
    _writable(connection, visitor, scope_id)
    return (scope_id,)


def forget(connection: Connection, vault: Vault, visitor: Visitor, memory_id: str) -> dict[str, Any]:
    """Forget one; it can be restored."""
    scopes = _writable_scopes(connection, visitor, memory_id)
    version = notes.forget_memory(connection, vault, memory_id, scopes=scopes, by=visitor.name)
    return {"id": memory_id, "version": version}


def restore(connection: Connection, vault: Vault, visitor: Visitor, memory_id: str) -> dict[str, Any]:
    """Bring back one that was forgotten."""
    scopes = _writable_scopes(connection, visitor, memory_id)
    return describe(notes.restore_memory(connection, vault, memory_id, scopes=scopes))


def export(connection: Connection, vault: Vault, visitor: Visitor, scope_id: str) -> list[dict[str, Any]]:
    """Everything that was noted for a scope, or for all that somebody may see, oldest first."""
    return export_notes(connection, vault, _allowed_by_name(connection, visitor, scope_id))


async def take_in(
    platform: Platform,
    visitor: Visitor,
    *,
    scope_id: str,
    form: str,
    text: str,
    publish: int = 0,
    place: Mapping[str, str] | None = None,
    leave_out: bool = False,
) -> dict[str, Any]:
    """Import a file, for a scope or each line for its own. It is checked whole before anything is kept. What is private
    in it is imported for others only on an owner's word: how many memories that are, or whom each audience means."""
    check_memory_on(platform)
    parsed = await asyncio.to_thread(parse_import, text, form)
    entries = [each for each in parsed if each.text]
    if scope_id:
        check = partial(_import_target, visitor=visitor, scope_id=scope_id, entries=entries, publish=publish)
        target, placed = await platform.database.read(check), dict[str, str]()
        entries = [each if each.scope_id == target else _moved(each, target) for each in entries]
    else:
        find = partial(_placed, visitor=visitor, entries=entries, place=place or {}, leave_out=leave_out)
        target, placed = "", await platform.database.read(find)
        entries = [replace(e, scope_id=placed[e.scope_id]) for e in entries if placed[e.scope_id]]
    before: dict[str, str | None] = {}
    for first in range(0, len(entries), IMPORTED_AT_ONCE):
        keep = partial(
            keep_import,
            vault=platform.vault,
            entries=entries[first : first + IMPORTED_AT_ONCE],
            trust=_trust(visitor),
            author=visitor.name,
        )
        before = {**await platform.database.write(keep), **before}
    states = list(before.values())
    forgotten, new = states.count(FORGOTTEN), states.count(None)
    kept = len(states) - forgotten
    moved = {old: new for old, new in placed.items() if new and new != old}
    counts = {
        "imported": kept,
        "known": kept - new,
        "forgotten": forgotten,
        "left_out": len(parsed) - len(entries),
    }
    return {"scope": target, **counts, "placed": moved}


def _moved(entry: ImportedNote, target: str) -> ImportedNote:
    return replace(entry, scope_id=target, kind="note")


def _import_target(
    connection: Connection, visitor: Visitor, scope_id: str, entries: Sequence[ImportedNote], publish: int
) -> str:
    """For whom an import is where one scope is said; raises what is wrong with it."""
    target = _writable(connection, visitor, scope_id)
    count = sum(each.private and each.scope_id != target for each in entries)
    if not count or (count == publish and visitor.may("owner")):
        return target
    told = (
        f"{count} of these memories are for one person or one conversation, and would be for {target} then."
    )
    if not visitor.may("owner"):
        raise Forbidden(f"{told} {OWNER_MOVES}")
    raise Conflict(
        f"{told} Nothing was imported. Leave the scope out to keep theirs, or say how many: --publish {count}."
    )


def _placed(
    connection: Connection,
    visitor: Visitor,
    entries: Sequence[ImportedNote],
    place: Mapping[str, str],
    leave_out: bool,
) -> dict[str, str]:
    """For whom each audience of a file is here, empty for one that is left out. Raises NotFound with all that have no
    place here, and how to give them one."""
    found: dict[str, str] = {}
    nowhere: dict[str, ImportedNote] = {}
    for entry in entries:
        if not entry.scope_id:
            where = f"Line {entry.line} does" if entry.line else "This file does"
            raise UnfitFile(f"{where} not say for whom it is: give a scope, such as agent:NAME.")
        if entry.scope_id not in found:
            try:
                found[entry.scope_id] = _scope_here(connection, visitor, entry, place)
            except NotFound:
                found[entry.scope_id], nowhere[entry.scope_id] = "", entry
    if unknown := sorted(place.keys() - found.keys()):
        raise UnfitFile(f"Nothing in this file is for {unknown[0][:80]!r}, which --place names.")
    if nowhere and not leave_out:
        counts = Counter(entry.scope_id for entry in entries)
        raise NotFound(_say_unplaced(connection, visitor, nowhere, counts))
    return found


def _scope_here(
    connection: Connection, visitor: Visitor, entry: ImportedNote, place: Mapping[str, str]
) -> str:
    wanted = place.get(entry.scope_id)
    if wanted is not None:
        if not visitor.may("owner"):
            raise Forbidden(OWNER_MOVES)
        try:
            return _writable(connection, visitor, wanted)
        except NotFound as error:
            raise UnfitFile(f"--place {entry.scope_id[:80]}={wanted[:80]}: {error}") from None
    here = entry.scope_id if _exists(connection, entry.scope_id) else scope_here(connection, entry)
    return _writable(connection, visitor, here or entry.scope_id)


def _say_unplaced(
    connection: Connection, visitor: Visitor, nowhere: Mapping[str, ImportedNote], counts: Counter[str]
) -> str:
    """What of a file has no place here, and how to give it one."""
    told = []
    for scope_id, entry in [*nowhere.items()][:MAX_NAMED]:
        called = [clean(each)[:80] for each in (entry.scope_name, *entry.scope_known_as[:1]) if each]
        named = f" ({', '.join(called)})" if called else ""
        told.append(f"Line {entry.line}: {clean(scope_id)[:80]}{named}, {counts[scope_id]} memories.")
    more = f" And {len(nowhere) - len(told)} more audiences." if len(nowhere) > len(told) else ""
    people = _known_people(connection, visitor) if any(each.startswith(PERSON) for each in nowhere) else ""
    first = clean(next(iter(nowhere)))[:80]
    return (
        f"Nothing was imported, because these audiences are not here: {' '.join(told)}{more} Say whom each means "
        f"here, such as --place {first}={first.partition(':')[0]}:ID, or leave them out with --leave-out.{people}"
    )


def _there(connection: Connection, visitor: Visitor, scope_id: str) -> str:
    """A scope by its id; raises NotFound for one that nobody has."""
    found = named_scope(connection, visitor, scope_id)
    if not _exists(connection, found):
        raise NotFound(f"There is no {scope_id[:80]}.")
    return found


async def begin_reindex(platform: Platform, visitor: Visitor, scope_id: str) -> dict[str, Any]:
    """Index a scope anew, or all of them, in the background."""
    if scope_id:
        split_scope(scope_id)
        scope_id = await platform.database.read(_there, visitor=visitor, scope_id=scope_id)
    scopes = [scope_id] if scope_id else await platform.database.read(indexed_scopes)
    # Without its key nothing can be indexed anew; what is there may still be read once a backup brings the key back.
    lost = await platform.database.read(lost_keys, vault=platform.vault, scopes=scopes)
    if scope_id and lost:
        raise ScopeKeyLost
    for each in [scope for scope in scopes if scope not in lost]:
        await platform.database.write(reindex, scope_id=each)
        platform.recall.degraded.pop(each, None)
    degraded = await platform.recall.examine(EXAMINED_AT_START)
    return {"scopes": len(scopes) - len(lost), "degraded": sorted(degraded.keys() & {*scopes})}
