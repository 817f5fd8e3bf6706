"""The sealed index of memories: posting lists under hashed terms. `gofer.memory.search` ranks by them.

Each scope (a conversation, a person, an agent) has an index of its own. Its documents are numbered in the order they
were added, and a block of 8,192 of them has one row per term: `(index, hash of the term, block)` and, sealed with the
scope's key, which documents of the block have the term and how often. Two rows of a block are no terms: how long each
document is and where a sitting begins, and which memory it is.

So the file shows how many rows an unknown word has and how long they are. It does not show which memories have a word.
The price: SQL cannot add up scores that it cannot read. `decisions/` has the figures.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Connection,
    bindparam,
    column,
    delete,
    func,
    insert,
    join,
    select,
    true,
    update,
)

from gofer.errors import Conflict
from gofer.memory.terms import Terms, hashed, to_hash
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import memory_indexes, memory_postings
from gofer.vault.envelope import DataKey, MacKey, aad
from gofer.vault.errors import Tampered

BLOCK = 8192
OFFSET_BITS = 3
MAX_COUNT = (1 << OFFSET_BITS) - 1
LENGTHS, IDS = 0, 1
"""Rows of a block in the place of a term."""
STARTS = 1 << 15
"""In a document's length: a sitting begins with it."""
MAX_LENGTH = STARTS - 1
_DELETED_AT_ONCE = 500


class Keys(Protocol):
    """The keys of a scope."""

    @property
    def seal(self) -> DataKey: ...

    def index(self, generation: int = 0) -> MacKey: ...


class IndexMoved(Conflict):
    """Somebody else added to this index at the same time."""


@dataclass(frozen=True, slots=True)
class Document:
    """One memory to be indexed."""

    memory: str | int
    """Its id, or the number of a conversation's message."""
    terms: Terms
    starts: bool = True
    """It does not follow the one before in the same sitting."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far a scope is indexed."""

    id: int
    scope_id: str
    documents: int
    length: int
    """Of all documents, in terms."""
    upto_seq: int
    """The last message of a conversation that is indexed."""
    generation: int = 0
    """Of the key that hashes its terms."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write to an index, if nobody else has added to it since `state`."""

    state: IndexState
    documents: int
    length: int
    new: list[dict[str, Any]] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)


def open_index(connection: Connection, scope_id: str, generation: int = 0) -> IndexState:
    """The state of a scope's index, which is made if there is none."""
    found = read_index(connection, scope_id)
    if found is not None:
        return found
    fresh = {"documents": 0, "length": 0, "upto_seq": 0, "generation": generation, "made_at": now()}
    new = fast_sql.upsert(connection.dialect.name, memory_indexes).values(scope_id=scope_id, **fresh)
    connection.execute(
        new.on_conflict_do_nothing(index_elements=["scope_id"])
    )  # another process may make it too
    made = read_index(connection, scope_id)
    assert made is not None
    return made


def read_index(connection: Connection, scope_id: str) -> IndexState | None:
    """The state of a scope's index, if it has one."""
    row = fast_sql.first(connection, _STATE, {"scope": scope_id})
    return None if row is None else state_of(row)


_INDEX = memory_indexes.c
_STATE = select(
    _INDEX.id, _INDEX.scope_id, _INDEX.documents, _INDEX.length, _INDEX.upto_seq, _INDEX.generation
).where(_INDEX.scope_id == bindparam("scope"))


def state_of(row: Any) -> IndexState:
    return IndexState(row.id, row.scope_id, row.documents, row.length, row.upto_seq, row.generation)


Rows = Mapping[tuple[int, int], bytes]
"""Sealed rows of an index by term and block."""


def hash_terms(state: IndexState, documents: Sequence[Document], keys: Keys) -> dict[str, int]:
    """Every term of these documents, hashed."""
    key = keys.index(state.generation)
    terms = {term for document in documents for term in document.terms.counts}
    return {term: hashed(to_hash(term), key) for term in terms}


def read_rows(connection: Connection, state: IndexState, terms: Iterable[int]) -> Rows:
    """The sealed rows of the block that is being filled."""
    places = [(state.id, term) for term in (LENGTHS, IDS, *terms)]
    found = read_terms(connection, places, state.documents // BLOCK)
    return {(row.term, row.block): bytes(row.sealed) for row in found}


def read_terms(
    connection: Connection, places: Sequence[tuple[int, int]], block: int | None = None
) -> list[Any]:
    """The rows of terms, each looked for in its own index alone; of one block, or of all."""
    indexes, terms = zip(*places, strict=True)
    values = {"places": places, "indexes": indexes, "terms": terms, "block": block}
    return fast_sql.fetch(connection, _TERMS[connection.dialect.name, block is not None], values)


_NUMBERS: ARRAY[int] = ARRAY(BigInteger)


def _terms(dialect: str, *, of_a_block: bool) -> Any:
    wanted: Any
    if dialect == "postgresql":
        pairs = func.unnest(bindparam("indexes", type_=_NUMBERS), bindparam("terms", type_=_NUMBERS))
        wanted = pairs.table_valued(column("index", BigInteger), column("term", BigInteger)).render_derived()
        index_id, term = wanted.c.index, wanted.c.term
    else:
        wanted = func.json_each(bindparam("places", type_=JSON)).table_valued("value")
        index_id, term = (func.json_extract(wanted.c.value, f"$[{number}]") for number in (0, 1))
    columns = memory_postings.c
    here = (columns.index_id == index_id) & (columns.term == term)
    if of_a_block:
        here &= columns.block == bindparam("block")
    found = select(columns.index_id, columns.term, columns.block, columns.sealed)
    if dialect == "postgresql":
        # Looked up one by one, as the offset has it: Postgres would rather read a whole table of some size.
        each = found.where(here).offset(0).lateral()
        return select(*each.c).select_from(join(wanted, each, true()))
    return found.select_from(join(wanted, memory_postings, here))


_TERMS = {
    (dialect, of_a_block): _terms(dialect, of_a_block=of_a_block)
    for dialect in ("sqlite", "postgresql")
    for of_a_block in (False, True)
}


def add_documents(
    state: IndexState, documents: Sequence[Document], keys: Keys, hashes: Mapping[str, int], rows: Rows
) -> Changes:
    """What adding these documents changes. Pure, so that it can be done in a thread; `write_changes` writes it.
    Raises Tampered when a row does not open, or is gone."""
    opened: dict[tuple[int, int], Any] = {}
    length = state.length

    def opens(term: int, block: int) -> Any:
        if (term, block) not in opened:
            sealed = rows.get((term, block))
            plain = keys.seal.open(sealed, _place(state.scope_id, term, block)) if sealed else None
            opened[term, block] = _unpacked(term, plain)
        return opened[term, block]

    for number, document in enumerate(documents, state.documents):
        block, offset = divmod(number, BLOCK)
        size = min(document.terms.length, MAX_LENGTH)
        length += size
        lengths, ids = opens(LENGTHS, block), opens(IDS, block)
        if min(len(lengths), len(ids)) < offset:
            raise Tampered  # a row is gone: whatever is added now would be found in the place of something else
        lengths.append(size | (STARTS if document.starts else 0))
        ids.append(document.memory)
        for term, count in document.terms.counts.items():
            opens(hashes[term], block).append(offset << OFFSET_BITS | min(count, MAX_COUNT))
    changes = Changes(state, state.documents + len(documents), length)
    for (hash_, block), value in opened.items():
        sealed = keys.seal.seal(_packed(value), _place(state.scope_id, hash_, block))
        (changes.changed if (hash_, block) in rows else changes.new).append(
            {"at_index": state.id, "at_term": hash_, "at_block": block, "bytes": sealed}
        )
    return changes


def write_changes(connection: Connection, changes: Changes, upto_seq: int) -> None:
    """Write what `add_documents` made; raises IndexMoved when the index is not as it was then."""
    state, columns = changes.state, memory_indexes.c
    moved = connection.execute(
        update(memory_indexes)
        .where(columns.id == state.id, columns.documents == state.documents)
        .where(columns.upto_seq == state.upto_seq)
        .values(
            documents=changes.documents,
            length=changes.length,
            upto_seq=max(upto_seq, state.upto_seq),
        )
    )
    if moved.rowcount != 1:
        raise IndexMoved(f"The index of {state.scope_id} has changed meanwhile.")
    fast_sql.many(connection, _INSERT, changes.new)
    fast_sql.many(connection, _UPDATE, changes.changed)


_INSERT = insert(memory_postings).values(
    index_id=bindparam("at_index"),
    term=bindparam("at_term"),
    block=bindparam("at_block"),
    sealed=bindparam("bytes"),
)
_UPDATE = (
    update(memory_postings)
    .where(
        memory_postings.c.index_id == bindparam("at_index"), memory_postings.c.term == bindparam("at_term")
    )
    .where(memory_postings.c.block == bindparam("at_block"))
    .values(sealed=bindparam("bytes"))
)


def drop_index(connection: Connection, scope_id: str) -> None:
    """Take a scope out of the index. Its rows are unreachable at once, and `sweep_postings` deletes them."""
    connection.execute(delete(memory_indexes).where(memory_indexes.c.scope_id == scope_id))


def is_readable(connection: Connection, scope_id: str, keys: Keys) -> bool:
    """Whether the first and the last block of a scope's index can be opened."""
    state = read_index(connection, scope_id)
    if state is None or not state.documents:
        return True
    for block in {0, (state.documents - 1) // BLOCK}:
        rows = read_terms(connection, [(state.id, LENGTHS), (state.id, IDS)], block)
        if len(rows) != 2:
            return False
        for row in rows:
            try:
                open_row(keys, scope_id, row)
            except Tampered:
                return False
    return True


def sweep_postings(connection: Connection) -> int:
    """Delete some rows of indexes that are gone; returns how many."""
    kept = select(memory_indexes.c.id)
    gone = connection.execute(
        select(memory_postings.c.index_id).where(memory_postings.c.index_id.not_in(kept)).limit(1)
    ).scalar()
    if gone is None:
        return 0
    columns = memory_postings.c
    some = connection.execute(
        select(columns.term, columns.block).where(columns.index_id == gone).limit(_DELETED_AT_ONCE)
    ).all()
    fast_sql.many(
        connection, _DELETE, [{"at_index": gone, "at_term": row.term, "at_block": row.block} for row in some]
    )
    return len(some)


_DELETE = (
    delete(memory_postings)
    .where(
        memory_postings.c.index_id == bindparam("at_index"), memory_postings.c.term == bindparam("at_term")
    )
    .where(memory_postings.c.block == bindparam("at_block"))
)


LAYOUT = "posting"
"""What rows hold, as part of what they are sealed for: rows of another layout do not open, so they are never misread,
and `gofer memory reindex` makes them anew. Whoever changes what a row holds gives it another name."""


def _place(scope_id: str, term: int, block: int) -> bytes:
    return _begins_with(LAYOUT, scope_id) + aad(term, block)


@lru_cache(maxsize=2048)
def _begins_with(layout: str, scope_id: str) -> bytes:
    return aad(layout, scope_id)


def open_row(keys: Keys, scope_id: str, row: Any) -> Any:
    """What a row holds; raises Tampered for one that was changed or moved."""
    return _unpacked(row.term, keys.seal.open(row.sealed, _place(scope_id, row.term, row.block)))


def _unpacked(term: int, plain: bytes | None) -> Any:
    if term == IDS:
        return json.loads(plain) if plain else []
    packed = array("H")
    packed.frombytes(plain or b"")
    return packed


def _packed(value: Any) -> bytes:
    return value.tobytes() if isinstance(value, array) else json.dumps(value, separators=(",", ":")).encode()


# Vectors, which `gofer.memory.embeddings` makes: a row for each memory in the place of a term.

VECTOR = 2
"""In the place of a term; its block is the number of the memory."""


def vector_place(scope_id: str, number: int) -> bytes:
    """The AAD that a memory's vector is bound to."""
    return _place(scope_id, VECTOR, number)


def seal_vectors(
    connection: Connection, state: IndexState, keys: Keys, start: int, vectors: Sequence[bytes]
) -> None:
    """Keep the vectors of memories, by their numbers."""
    rows = [
        {
            "at_index": state.id,
            "at_term": VECTOR,
            "at_block": number,
            "bytes": keys.seal.seal(vector, vector_place(state.scope_id, number)),
        }
        for number, vector in enumerate(vectors, start)
    ]
    fast_sql.many(connection, _INSERT, rows)


def read_names(
    connection: Connection, state: IndexState, keys: Keys, start: int, count: int
) -> list[str | int]:
    """Which memories an index has, from a number on; raises Tampered when it cannot be read."""
    names: list[str | int] = []
    end = min(start + count, state.documents)
    for block in range(start // BLOCK, (end - 1) // BLOCK + 1) if end > start else ():
        rows = read_terms(connection, [(state.id, IDS)], block)
        if not rows:
            raise Tampered
        all_of_it = open_row(keys, state.scope_id, rows[0])
        names += all_of_it[max(0, start - block * BLOCK) : end - block * BLOCK]
    return names


async def add(
    database: Database, scope_id: str, keys: Keys, documents: Sequence[Document], upto_seq: int = 0
) -> None:
    """Add documents to a scope's index. Only reading and writing rows keeps the database busy: the rest is done in a
    thread. Raises IndexMoved when somebody else has added to it meanwhile."""
    state = await database.write(open_index, scope_id=scope_id)
    await add_to(database, state, keys, documents, upto_seq)


async def add_to(
    database: Database, state: IndexState, keys: Keys, documents: Sequence[Document], upto_seq: int = 0
) -> None:
    """The same, to an index that is as it was read."""
    hashes = await asyncio.to_thread(hash_terms, state, documents, keys)
    rows = await database.read(read_rows, state=state, terms=hashes.values())
    changes = await asyncio.to_thread(add_documents, state, documents, keys, hashes, rows)
    await database.write(write_changes, changes=changes, upto_seq=upto_seq)
