"""Search in the sealed index: BM25 over posting lists, with neighbour smoothing, the same on both databases."""

from __future__ import annotations

import asyncio
import heapq
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Connection, select

from gofer.memory.index import (
    BLOCK,
    IDS,
    LENGTHS,
    MAX_COUNT,
    MAX_LENGTH,
    OFFSET_BITS,
    STARTS,
    IndexState,
    Keys,
    open_row,
    read_terms,
    state_of,
)
from gofer.memory.terms import hashed, query_terms, to_hash
from gofer.store.database import Database
from gofer.store.tables import memory_indexes
from gofer.vault.errors import Tampered

K1, B = 1.2, 0.75
TO_NEXT, TO_PREVIOUS = 0.3, 0.5
"""How much of its score a document also gives to the one after it and to the one before it, in the same sitting."""
_SMOOTHED = 150
"""The best documents, whose neighbours are looked at, unless more are asked for."""
_MANY = 1000
"""Documents with a word, from which on it pays to look first whether they matter."""
_SHORT = 256
"""Terms of a text whose length is looked up in a table."""
_FEW = 300
"""Documents below which how many of them have a word says little about how rare it is."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that fits a query."""

    scope_id: str
    memory: str | int
    score: float
    share: float
    """Of the score that a text with every word of the query could have."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, best first, and the scopes whose index has damaged rows."""

    hits: list[Hit]
    damaged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Searched:
    """The sealed rows that a query needs, of every scope it may see."""

    states: Mapping[int, IndexState]
    rows: Sequence[Any]
    terms: Mapping[tuple[int, int], int]
    """Which word of the query a term of an index stands for."""


def read_postings(
    connection: Connection, query: Sequence[Iterable[str]], scopes: Mapping[str, Keys]
) -> Searched:
    """Read what a search needs."""
    columns = memory_indexes.c
    found = connection.execute(select(memory_indexes).where(columns.scope_id.in_(list(scopes)))).all()
    states = {row.id: state_of(row) for row in found}
    terms: dict[tuple[int, int], int] = {}
    words = [(number, to_hash(term)) for number, variants in enumerate(query) for term in variants]
    for state in states.values():
        key = scopes[state.scope_id].index(state.generation)
        terms.update({(state.id, hashed(word, key)): number for number, word in words})
    if not terms:
        return Searched(states, (), terms)
    blocks = [(index_id, row) for index_id in states for row in (LENGTHS, IDS)]
    return Searched(states, read_terms(connection, [*blocks, *terms]), terms)


def rank(searched: Searched, scopes: Mapping[str, Keys], limit: int) -> Found:
    """Score what was read. Pure, so that it can be done in a thread. Rows that do not open are passed over."""
    lengths: dict[tuple[int, int], array[int]] = {}
    postings: dict[int, list[tuple[tuple[int, int], array[int]]]] = {}
    names: dict[tuple[int, int], Any] = {}
    damaged: set[str] = set()
    for row in searched.rows:
        place = (row.index_id, row.block)
        if row.term == IDS:
            names[place] = row
        elif (values := _open(searched, scopes, row, damaged)) is None:
            continue
        elif row.term == LENGTHS:
            lengths[place] = values
        elif (number := searched.terms.get((row.index_id, row.term))) is not None:
            postings.setdefault(number, []).append((place, values))
    damaged.update(
        state.scope_id for state in searched.states.values() if not _is_whole(state, lengths, names)
    )
    postings = {number: _fitting(searched, lists, lengths, damaged) for number, lists in postings.items()}
    best = max(_SMOOTHED, limit)
    scores, most = _scores(searched, lengths, postings, best)
    hits: list[Hit] = []
    ids: dict[tuple[int, int], Any] = {}
    for score, index, block, offset in _smoothed(scores, lengths, best)[:limit]:
        place = (index, block)
        if place not in ids:
            ids[place] = _open(searched, scopes, names[place], damaged) if place in names else None
        if offset < len(ids[place] or ()):
            share = score / most if most else 0.0
            hits.append(Hit(searched.states[index].scope_id, ids[place][offset], score, share))
        else:
            damaged.add(searched.states[index].scope_id)
    return Found(hits, frozenset(damaged))


def _is_whole(state: IndexState, *rows: Mapping[tuple[int, int], Any]) -> bool:
    """Whether the last block of an index has the rows that every block has."""
    place = (state.id, (state.documents - 1) // BLOCK)
    return not state.documents or all(place in each for each in rows)


def _open(searched: Searched, scopes: Mapping[str, Keys], row: Any, damaged: set[str]) -> Any:
    scope_id = searched.states[row.index_id].scope_id
    try:
        return open_row(scopes[scope_id], scope_id, row)
    except (Tampered, ValueError):
        damaged.add(scope_id)
        return None


Postings = list[tuple[tuple[int, int], "array[int]"]]


def _fitting(
    searched: Searched, lists: Postings, lengths: Mapping[tuple[int, int], array[int]], damaged: set[str]
) -> Postings:
    """Without lists that name documents which their block has not got: rows that are gone, of different ages, or of
    another layout."""
    fitting: Postings = []
    for place, values in lists:
        if values and values[-1] >> OFFSET_BITS >= len(lengths.get(place, ())):
            damaged.add(searched.states[place[0]].scope_id)
        else:
            fitting.append((place, values))
    return fitting


Scores = dict[tuple[int, int], dict[int, float]]


def _scores(
    searched: Searched,
    lengths: Mapping[tuple[int, int], array[int]],
    postings: Mapping[int, list[tuple[tuple[int, int], array[int]]]],
    best: int,
) -> tuple[Scores, float]:
    """BM25 of each document that has a word of the query, by block."""
    documents = sum(state.documents for state in searched.states.values())
    average = max(1.0, sum(state.length for state in searched.states.values()) / max(1, documents))
    slope = K1 * B / average
    norms = [K1 * (1 - B) + slope * size for size in range(_SHORT)]
    scores: Scores = {}
    weighed = []
    for lists in postings.values():
        having = sum(len(values) for _, values in lists)
        among = max(documents, _FEW)
        weight = (K1 + 1) * math.log(1 + (among - having + 0.5) / (having + 0.5))
        weighed.append((having, weight, lists))
    most = left = sum(weight for _, weight, _ in weighed)
    for having, weight, lists in sorted(weighed, key=lambda each: each[0]):
        # Rare words come first: what has none of them cannot be among the best once those have more than is left.
        known_only = having > _MANY and _worst_of_best(scores, best) > left
        left -= weight
        for place, values in lists:
            here = scores.setdefault(place, {})
            sizes = lengths.get(place)
            if sizes is None or (known_only and not here):
                continue
            had = here.get
            for value in values:
                offset = value >> OFFSET_BITS
                if known_only and offset not in here:
                    continue
                count, size = value & MAX_COUNT, sizes[offset] & MAX_LENGTH
                norm = norms[size] if size < _SHORT else K1 * (1 - B) + slope * size
                here[offset] = had(offset, 0.0) + weight * count / (count + norm)
    return scores, most


def _worst_of_best(scores: Scores, count: int) -> float:
    best = heapq.nlargest(count, chain.from_iterable(here.values() for here in scores.values()))
    return best[-1] if len(best) == count else 0.0


def _smoothed(
    scores: Scores, lengths: Mapping[tuple[int, int], array[int]], best: int
) -> list[tuple[float, int, int, int]]:
    """The best documents once each has given of its score to its neighbours."""
    enough = _worst_of_best(scores, best)
    totals: dict[tuple[int, int, int], float] = {}
    for (index, block), here in scores.items():
        for offset, score in here.items():
            if score < enough:
                continue
            number = block * BLOCK + offset
            _give(totals, index, number, score)
            if not _begins(lengths, index, number):
                _give(totals, index, number - 1, score * TO_PREVIOUS)
            if not _begins(lengths, index, number + 1):
                _give(totals, index, number + 1, score * TO_NEXT)
    ranked = heapq.nlargest(best, ((total, *place) for place, total in totals.items()))
    return [(score, index, block, offset) for score, index, block, offset in ranked]


def _give(totals: dict[tuple[int, int, int], float], index: int, number: int, score: float) -> None:
    place = (index, *divmod(number, BLOCK))
    totals[place] = totals.get(place, 0.0) + score


def _begins(lengths: Mapping[tuple[int, int], array[int]], index: int, number: int) -> bool:
    """Whether a sitting begins with a document; so does one that is not there."""
    block, offset = divmod(number, BLOCK)
    sizes = lengths.get((index, block), ())
    return offset >= len(sizes) or bool(sizes[offset] & STARTS)


async def search(database: Database, scopes: Mapping[str, Keys], query: str, limit: int = 10) -> Found:
    """Search the indexes of these scopes, and of no others."""
    terms = query_terms(query)
    if not terms or not scopes:
        return Found([])
    found = await database.read(_search, terms=terms, scopes=scopes, limit=limit)
    return found if isinstance(found, Found) else await asyncio.to_thread(rank, found, scopes, limit)


def _search(
    connection: Connection, terms: Sequence[Iterable[str]], scopes: Mapping[str, Keys], limit: int
) -> Found | Searched:
    """SQLite reads in a thread already, so what was read is scored there; Postgres reads on the event loop."""
    searched = read_postings(connection, terms, scopes)
    return rank(searched, scopes, limit) if connection.dialect.name == "sqlite" else searched
