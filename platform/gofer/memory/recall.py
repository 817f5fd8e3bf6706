"""Recall: keep the index up to date with what was said and noted, and find memories by words.

Messages are indexed once they are admitted, in the order of their numbers; a search first indexes what its scopes
still lack. Everything but reading and writing rows is done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, func, select, tuple_, update

from gofer.errors import GoferError, NotFound, StoreError
from gofer.memory import index
from gofer.memory.embeddings import Embeddings, fuse
from gofer.memory.index import Document, IndexMoved, IndexState
from gofer.memory.manager import ensure_tidying
from gofer.memory.records import LIVE, Memory, forgotten_turns, readable, resolve, still_damaged, turn_id
from gofer.memory.scopes import (
    CONVERSATION,
    ScopeKeyLost,
    ScopeKeys,
    conversation_scope,
    open_scope,
    open_scopes,
    split_scope,
)
from gofer.memory.search import Hit, search
from gofer.memory.terms import text_terms
from gofer.store.database import Database
from gofer.store.messages import StoredMessage, open_stored
from gofer.store.tables import ASIDE, Trust, conversations, memories, memory_indexes, messages
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

log = structlog.get_logger()

SITTING = 6 * 3600.0
"""Seconds of silence after which another sitting begins."""
BATCH = 200
"""Memories that are indexed at once."""
MAX_BATCHES = 25
"""Batches that a search waits for in all; the rest is indexed in the background."""
IDLE = 5.0
_BEHIND_AT_ONCE = 20
_SPARE = 3
"""How many more hits are looked up than asked for: some may be forgotten, or the same memory twice."""
_OF_A_KIND = 3000
"""Hits that are looked through for those of one kind."""
EXAMINED_SECONDS, EXAMINED_AT_START = 5.0, 1.0
"""How long everything that is remembered is looked at, by `gofer doctor` and when Gofer starts."""
_EXAMINED_AT_ONCE = 500
_NAMED = 5
"""Memories that an advice names."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A memory that fits a query."""

    memory: Memory
    score: float
    share: float
    """Of the score that a text with every word of the query could have."""


@dataclass(frozen=True, slots=True)
class Results:
    """What a search found, best first."""

    found: list[Recalled]
    degraded: dict[str, str] = field(default_factory=dict)
    """Scopes that could not be searched as they should, and why."""


@dataclass(slots=True)
class Counters:
    """What this process has recalled since it started."""

    searches: int = 0
    seconds: float = 0.0
    shown: int = 0
    """Runs that were shown recalled memories."""
    used: int = 0
    """Of those, runs whose answer or whose later calls named one of them."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What an index lacks, still sealed."""

    keys: ScopeKeys
    state: IndexState | None
    before: Any
    said: Sequence[Any]
    noted: Sequence[Any]


class Recall:
    """Searches memories, and keeps them searchable."""

    def __init__(self, database: Database, vault: Vault, embeddings: Embeddings | None = None) -> None:
        self._database = database
        self._vault = vault
        self.embeddings = embeddings
        self.counters = Counters()
        self.degraded: dict[str, str] = {}
        """Scopes that this process found damaged, and why."""
        self.not_examined = 0
        """Scopes that the last examination did not get to."""
        self._damaged: dict[str, set[str]] = {}
        """Memories that this process could not open, by scope."""
        self._stuck: dict[str, int] = {}

    async def search(self, scopes: Collection[str], query: str, limit: int = 10, kind: str = "") -> Results:
        """The memories of these scopes that fit a query, and of no others; of one kind, where one is said. Never raises
        for memories that cannot be read, nor for tables: the results say which."""
        began = time.monotonic()
        self.counters.searches += 1
        try:
            results = await self._search(scopes, query, limit, kind)
            self.degraded.pop(ALL, None)
        except StoreError as error:
            self.tell({ALL: str(error)})
            results = Results([])
        self.counters.seconds += time.monotonic() - began
        known = {each: self.degraded[each] for each in (*scopes, ALL) if each in self.degraded}
        return Results(results.found, known)

    async def _search(self, scopes: Collection[str], query: str, limit: int, kind: str) -> Results:
        keys, degraded = await self._database.read(open_scopes, vault=self._vault, scopes=scopes)
        for scope_id in [each for each in keys if self.degraded.get(each) == KEY_LOST]:
            del self.degraded[scope_id]
        left = MAX_BATCHES
        for scope_id in await self._database.read(_behind, scopes=list(keys)):
            if left > 0:  # somebody waits; the background does the rest
                left -= 1 + await self.catch_up(scope_id, left) // BATCH
        most = max(limit * _SPARE, _OF_A_KIND if kind else 0)
        found, near = await asyncio.gather(search(self._database, keys, query, most), self._near(query, keys))
        degraded |= dict.fromkeys(found.damaged, DAMAGED)
        hits = fuse(found.hits, near, most) if near else found.hits
        recalled, damaged = await self._database.read(
            _resolve_all, vault=self._vault, hits=hits, scopes=list(keys), limit=limit, kind=kind
        )
        for scope_id, ids in damaged.items():
            self.tell_damaged(scope_id, ids)
        self.tell(degraded)
        return Results(recalled)

    async def _near(self, query: str, keys: dict[str, ScopeKeys]) -> dict[tuple[str, str | int], float]:
        if self.embeddings is None or not query.strip() or not keys:
            return {}
        return await self.embeddings.near(query, keys)

    def tell(self, degraded: Mapping[str, str]) -> None:
        """Take down which scopes cannot be read as they should, and why; the log is told once."""
        for scope_id, why in degraded.items():
            if scope_id not in self.degraded:
                log.warning("memory.degraded", scope=scope_id, reason=why, fix="gofer doctor")
        self.degraded.update(degraded)

    def tell_damaged(self, scope_id: str, ids: Collection[str]) -> None:
        """Take down which memories of a scope were changed or damaged."""
        damaged = self._damaged.setdefault(scope_id, set())
        damaged.update(ids)
        if damaged and self.degraded.get(scope_id) not in (DAMAGED, KEY_LOST):
            self.tell({scope_id: _say_damaged(damaged)})

    async def examine(self, seconds: float = EXAMINED_SECONDS) -> dict[str, str]:
        """Look at everything that is remembered, for some seconds at most: returns the audiences that cannot be read as
        they should, and why. `not_examined` says how many it did not get to."""
        deadline = time.monotonic() + seconds
        scopes = await self._database.read(_every_scope)
        # Only a search finds each damaged row; what it found stays until the index is made anew.
        indexed = set(await self._database.read(indexed_scopes))
        before, self.degraded = self.degraded, {}
        self.tell({each: why for each, why in before.items() if why == DAMAGED and each in indexed})
        left = [each for each in scopes if not await self._examine_scope(each, deadline)]
        self.not_examined = len(left)
        self.tell({each: before[each] for each in left if each in before})
        for scope_id in list(self._damaged):
            await self._look_again(scope_id)
        return self.degraded

    async def _examine_scope(self, scope_id: str, deadline: float) -> bool:
        """False when there was no time for all of it."""
        seen = _Examined()
        while not seen.whole:
            if time.monotonic() > deadline:
                return False
            try:
                seen = await self._database.read(_examine, vault=self._vault, scope_id=scope_id, after=seen)
            except NotFound:
                return True  # purged
            except ScopeKeyLost as error:
                self.tell({scope_id: str(error)})
                return True
            if not seen.index_opens:
                self.tell({scope_id: DAMAGED})
            self.tell_damaged(scope_id, seen.damaged)
        return True

    async def catch_up(self, scope_id: str, batches: int = MAX_BATCHES) -> int:
        """Index what a scope lacks; returns how many memories that were."""
        count = 0
        for _ in range(batches):
            try:
                added = await self._add_batch(scope_id)
            except IndexMoved:
                continue  # somebody else is at it
            except (NotFound, ScopeKeyLost, Tampered) as error:
                log.info("memory.not_indexed", scope=scope_id, error=str(error))
                break
            if added is None:
                break
            count += added
        return count

    async def _add_batch(self, scope_id: str) -> int | None:
        """None when nothing is left that can be indexed."""
        batch = await self._database.read(_lacking, vault=self._vault, scope_id=scope_id)
        documents, upto, damaged = await asyncio.to_thread(_documents, batch)
        if damaged:
            self.tell_damaged(scope_id, damaged)
        if batch.noted:
            await self._look_again(scope_id)
        if not documents and upto == (batch.state.upto_seq if batch.state else 0) and not batch.noted:
            return None
        state = batch.state
        if state is None:
            state = await self._database.write(index.open_index, scope_id=scope_id)
        hashes = await asyncio.to_thread(index.hash_terms, state, documents, batch.keys)
        rows = await self._database.read(index.read_rows, state=state, terms=hashes.values())
        changes = await asyncio.to_thread(index.add_documents, state, documents, batch.keys, hashes, rows)
        noted = [(row.id, row.version) for row in batch.noted]
        tidy = any(row.kind == "note" for row in batch.noted)
        await self._database.write(_write, changes=changes, upto=upto, noted=noted, tidy=tidy)
        return len(documents)

    async def _look_again(self, scope_id: str) -> None:
        """Look again at the memories of a scope that did not open: somebody may have had them forgotten."""
        if not (known := self._damaged.pop(scope_id, None)):
            return
        left = await self._database.read(still_damaged, vault=self._vault, scope_id=scope_id, ids=known)
        if left:
            self.tell_damaged(scope_id, left)
        elif self.degraded.get(scope_id) == _say_damaged(known):
            del self.degraded[scope_id]

    async def keep_indexed(self) -> None:
        """Index in the background what nobody has searched yet, a batch of each scope at a time; and delete what is
        left of indexes that are gone."""
        with contextlib.suppress(GoferError):  # which is told when somebody searches
            await self.examine(EXAMINED_AT_START)
        while True:
            try:
                busy = await self.tick()
            except GoferError as error:
                log.warning("memory.not_indexed", error=str(error))
                busy = False
            await asyncio.sleep(0 if busy else IDLE)

    async def tick(self) -> bool:
        """One bounded piece of that work; whether there was any."""
        behind = await self._database.read(_all_behind, stuck=self._stuck)
        done = 0
        for scope_id, last in behind:
            added = await self.catch_up(scope_id, batches=1)
            done += added
            if not added:
                self._stuck[scope_id] = last  # until something new is there
        if self.embeddings is not None:
            done += await self.embeddings.embed_some()
        return done > 0 or bool(await self._database.write(index.sweep_postings))


DAMAGED = "damaged rows in its index"
KEY_LOST = str(ScopeKeyLost())
ALL = "all"
"""In the place of a scope: the tables cannot be read."""


def advice(scope_id: str, why: str) -> str:
    """What is wrong with a scope, and what to do about it."""
    if scope_id == ALL:
        return f"Nothing can be recalled: {why} Run: gofer doctor"
    if why == DAMAGED:
        return f"{scope_id} has {why}. Run: gofer memory reindex --scope {scope_id}"
    if why == KEY_LOST:
        return f"{scope_id}: {why}"
    return (
        f"In {scope_id}, {why}. Forget them (gofer memory forget ID), or put the database's backup back "
        "(gofer restore FILE)."
    )


def _say_damaged(ids: Collection[str]) -> str:
    named = ", ".join(sorted(ids)[:_NAMED])
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"these memories were changed or damaged: {named}{more}"


def reindex(connection: Connection, scope_id: str) -> int:
    """Begin a scope's index anew, under a new key; returns its generation. It is filled in the background, and by the
    next search."""
    before = index.read_index(connection, scope_id)
    generation = before.generation + 1 if before else 0
    index.drop_index(connection, scope_id)
    index.open_index(connection, scope_id, generation)
    connection.execute(update(memories).where(memories.c.scope_id == scope_id).values(indexed=False))
    return generation


def lost_keys(connection: Connection, vault: Vault, scopes: Collection[str]) -> set[str]:
    """Those of the scopes whose key is lost."""
    return set(open_scopes(connection, vault, scopes)[1])


def count_by_kind(connection: Connection) -> dict[str, int]:
    """Memories in force, by kind; turns are those that can be searched for."""
    query = select(memories.c.kind, func.count()).where(
        memories.c.valid_to.is_(None), memories.c.state == LIVE
    )
    found = {str(kind): int(count) for kind, count in connection.execute(query.group_by(memories.c.kind))}
    total = connection.execute(select(func.coalesce(func.sum(memory_indexes.c.documents), 0))).scalar_one()
    found["turn"] = max(0, int(total) - sum(found.values()))
    return found


def _every_scope(connection: Connection) -> list[str]:
    """Every audience: people and agents, then conversations, the newest first."""
    noted = select(memories.c.scope_id).where(memories.c.valid_to.is_(None)).distinct()
    wide = [str(each) for each in connection.execute(noted).scalars() if split_scope(each)[0] != CONVERSATION]
    rooms = select(conversations.c.id).where(conversations.c.data_key.is_not(None))
    newest = connection.execute(rooms.order_by(conversations.c.created_at.desc())).scalars()
    return [*wide, *(conversation_scope(str(each)) for each in newest)]


@dataclass(frozen=True, slots=True)
class _Examined:
    """How far a scope was looked at, and what does not open of the last piece."""

    note: tuple[str, str] = ("", "")
    """Kind and id of the last note."""
    seq: int = 0
    """The number of the last message."""
    index_opens: bool = True
    damaged: Sequence[str] = ()
    whole: bool = False
    """There is nothing after it."""


def _examine(connection: Connection, vault: Vault, scope_id: str, after: _Examined) -> _Examined:
    """Look at some more memories of a scope, and first of all at its index; raises NotFound when it is purged, and
    ScopeKeyLost."""
    keys, (kind, owner) = open_scope(connection, vault, scope_id), split_scope(scope_id)
    index_opens = after != _Examined() or index.is_readable(connection, scope_id, keys)
    columns = memories.c
    noted = connection.execute(
        select(memories)
        .where(columns.scope_id == scope_id, columns.valid_to.is_(None), columns.sealed.is_not(None))
        .where(tuple_(columns.kind, columns.id) > after.note)
        .order_by(columns.kind, columns.id)
        .limit(_EXAMINED_AT_ONCE)
    ).all()
    damaged = readable(keys, noted)[1]
    said: Sequence[Any] = ()
    if kind == CONVERSATION:
        said = connection.execute(
            select(messages)
            .where(messages.c.conversation_id == owner, messages.c.seq > after.seq)
            .where(messages.c.sealed.is_not(None), messages.c.event.not_in(ASIDE))
            .order_by(messages.c.seq)
            .limit(_EXAMINED_AT_ONCE)
        ).all()
        gone = forgotten_turns(connection, owner)
        unread = [row.seq for row in said if row.seq not in gone and _stored(keys, row) is None]
        damaged += [turn_id(owner, seq) for seq in unread]
    return _Examined(
        note=(noted[-1].kind, noted[-1].id) if noted else after.note,
        seq=said[-1].seq if said else after.seq,
        index_opens=index_opens,
        damaged=damaged,
        whole=max(len(noted), len(said)) < _EXAMINED_AT_ONCE,
    )


def indexed_scopes(connection: Connection) -> list[str]:
    """Every scope that has an index."""
    query = select(memory_indexes.c.scope_id).order_by(memory_indexes.c.made_at.desc())
    return [str(row.scope_id) for row in connection.execute(query)]


def _behind(connection: Connection, scopes: Sequence[str]) -> list[str]:
    """Those of the scopes that have something which is not indexed."""
    talk = {scope: split_scope(scope)[1] for scope in scopes if split_scope(scope)[0] == CONVERSATION}
    states = {
        row.scope_id: row.upto_seq
        for row in connection.execute(select(memory_indexes).where(memory_indexes.c.scope_id.in_(scopes)))
    }
    last = {
        row.id: row.last_seq
        for row in connection.execute(
            select(conversations.c.id, conversations.c.last_seq).where(conversations.c.id.in_(talk.values()))
        )
    }
    noted = _with_notes(connection, scopes)
    return [
        scope
        for scope in scopes
        if scope in noted or (scope in talk and last.get(talk[scope], 0) > states.get(scope, 0))
    ]


def _with_notes(connection: Connection, scopes: Sequence[str]) -> set[str]:
    query = select(memories.c.scope_id).where(memories.c.scope_id.in_(scopes), ~memories.c.indexed).distinct()
    return {str(row.scope_id) for row in connection.execute(query)}


def _all_behind(connection: Connection, stuck: dict[str, int]) -> list[tuple[str, int]]:
    """Some scopes that have something which is not indexed, with the number of their last message."""
    upto = (
        select(memory_indexes.c.upto_seq)
        .where(memory_indexes.c.scope_id == f"{CONVERSATION}:" + conversations.c.id)
        .scalar_subquery()
    )
    query = select(conversations.c.id, conversations.c.last_seq).where(
        conversations.c.data_key.is_not(None), conversations.c.last_seq > func.coalesce(upto, 0)
    )
    found = [(conversation_scope(row.id), int(row.last_seq)) for row in connection.execute(query)]
    notes = select(memories.c.scope_id).where(~memories.c.indexed).distinct()
    found += [(str(row.scope_id), -1) for row in connection.execute(notes)]
    return [(scope, last) for scope, last in found if last < 0 or stuck.get(scope) != last][:_BEHIND_AT_ONCE]


def _lacking(connection: Connection, vault: Vault, scope_id: str) -> _Batch:
    kind, owner = split_scope(scope_id)
    keys, state = open_scope(connection, vault, scope_id), index.read_index(connection, scope_id)
    noted = connection.execute(
        select(memories).where(memories.c.scope_id == scope_id, ~memories.c.indexed).limit(BATCH)
    ).all()
    if kind != CONVERSATION:
        return _Batch(keys, state, None, (), noted)
    after = state.upto_seq if state else 0
    here = select(messages).where(messages.c.conversation_id == owner)
    said = connection.execute(here.where(messages.c.seq > after).order_by(messages.c.seq).limit(BATCH)).all()
    spoken = here.where(
        messages.c.seq <= after, messages.c.event.not_in(ASIDE), messages.c.sealed.is_not(None)
    )
    before = connection.execute(spoken.order_by(messages.c.seq.desc()).limit(1)).first()
    return _Batch(keys, state, before, said, noted)


def _documents(batch: _Batch) -> tuple[list[Document], int, list[str]]:
    """What is to be indexed, the number of the last message that is dealt with, and the ids of what does not open."""
    made: list[Document] = []
    upto = batch.state.upto_seq if batch.state else 0
    before, before_text = batch.before, ""
    if before is not None and (stored := _stored(batch.keys, before)) is not None:
        before_text = stored.message.text
    damaged = []
    for row in batch.said:
        if row.sealed is None or row.event in ASIDE:
            upto = row.seq
            continue
        stored = _stored(batch.keys, row)
        if stored is None:
            damaged.append(turn_id(row.conversation_id, row.seq))
            upto = row.seq
            continue
        ours = row.author.startswith("agent:")
        if stored.trust is Trust.UNKNOWN and not ours:
            break  # its text and its author's trust may still change
        if not stored.message.text.strip():  # a picture, say: there is no word to find it by
            upto = row.seq
            continue
        follows = before is not None and row.created_at - before.created_at <= SITTING
        name = "" if ours else stored.message.author.name
        terms = text_terms(
            stored.message.text, speaker=name, at=row.created_at, before=before_text if follows else ""
        )
        made.append(Document(row.seq, terms, starts=not follows))
        before, before_text, upto = row, stored.message.text, row.seq
    live = [
        row for row in batch.noted if row.sealed is not None and row.state == LIVE and row.valid_to is None
    ]
    notes, unread = readable(batch.keys, live)
    made += [
        Document(note.id, text_terms(note.text, speaker=note.author, at=note.valid_from)) for note in notes
    ]
    return made, upto, damaged + unread


def _stored(keys: ScopeKeys, row: Any) -> StoredMessage | None:
    """A message, or None for one that was changed or damaged."""
    try:
        return open_stored(keys.seal, row)
    except Tampered:
        return None


def _write(
    connection: Connection, changes: index.Changes, upto: int, noted: Sequence[tuple[str, int]], tidy: bool
) -> None:
    index.write_changes(connection, changes, upto)
    if tidy:
        ensure_tidying(connection, changes.state.scope_id)
    for memory_id, version in noted:
        connection.execute(
            update(memories)
            .where(memories.c.id == memory_id, memories.c.version == version)
            .values(indexed=True)
        )


def _resolve_all(
    connection: Connection, vault: Vault, hits: Sequence[Hit], scopes: Collection[str], limit: int, kind: str
) -> tuple[list[Recalled], dict[str, list[str]]]:
    """The hits as memories: only those that are there, live, and may be known; and those of each scope that are there
    and cannot be read."""
    found: dict[str, Recalled] = {}
    damaged: dict[str, list[str]] = {}
    for hit in hits:
        memory_id = hit.memory
        is_turn = isinstance(memory_id, int)
        if kind and is_turn != (kind == "turn"):
            continue
        if isinstance(memory_id, int):
            memory_id = turn_id(split_scope(hit.scope_id)[1], memory_id)
        if memory_id in found or len(found) >= limit:
            continue
        try:
            memory = resolve(connection, vault, memory_id, scopes=scopes)
        except Tampered:
            damaged.setdefault(hit.scope_id, []).append(memory_id)
            continue
        except GoferError:
            continue  # forgotten, purged, or never more than a row
        if memory.valid_to is None and memory.text.strip() and kind in ("", memory.kind):
            found[memory_id] = Recalled(memory, hit.score, hit.share)
    return list(found.values()), damaged
