"""Embeddings as a second signal of a search, through an OpenAI-compatible endpoint; off unless it is configured.

Vectors are made in the background and lie beside the index, one sealed row for each memory. A search embeds its query
within a bound of time and compares it with the newest memories. Whatever goes wrong (the endpoint is slow or gone, or
its vectors have another size than those that are kept), the search goes by words alone and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any

import httpx2
import structlog
from sqlalchemy import Connection, delete, func, select

from gofer.errors import GoferError, NotFound
from gofer.memory.index import (
    VECTOR,
    IndexState,
    Keys,
    read_index,
    read_names,
    seal_vectors,
    vector_place,
)
from gofer.memory.records import resolve, turn_id
from gofer.memory.scopes import open_scope, split_scope
from gofer.memory.search import Hit
from gofer.secrets.secret_store import get_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.tables import memory_indexes, memory_postings
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

log = structlog.get_logger()

BATCH = 32
"""Memories that are embedded at once, at most."""
MAX_CHARACTERS = 2000
"""Of a text that are embedded."""
MAX_COMPARED = 1000
"""The newest vectors of a scope that a query is compared with."""
WEIGHT = 0.4
"""Of a perfect fit by meaning, where the best fit by words has 1."""
MIN_COSINE = 0.3
QUERY_TIMEOUT, BATCH_TIMEOUT = 2.0, 20.0
MAX_RESPONSE = 16 * 1024 * 1024
MAX_DIMENSIONS = 8192
ANOTHER_SIZE = "its vectors have another size than those that are kept, which are made anew"
_HEAD = 8


class EmbeddingsFailed(GoferError):
    """The embeddings endpoint gave no usable answer."""

    code = "memory.embeddings"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where vectors come from."""

    url: str
    model: str
    secret: str = ""
    """The name of a secret in the vault."""


class Embeddings:
    """Makes vectors, keeps them, and compares with them."""

    def __init__(
        self, database: Database, vault: Vault, http: httpx2.AsyncClient, endpoint: Endpoint
    ) -> None:
        self._database = database
        self._vault = vault
        self._http = http
        self._endpoint = endpoint
        self.problem = ""
        """What is wrong with it now, for doctor and the dashboard."""
        self._stale: set[str] = set()
        """Scopes whose vectors a query could not be compared with."""
        self._damaged: set[int] = set()
        """Indexes whose memories cannot be read, until they are made anew."""
        self._at_once = BATCH
        """Memories that are embedded at once; fewer after a request that failed."""

    async def embed_some(self) -> bool:
        """Embed a few memories that have no vector yet; whether there may be more to do now. Never raises for the
        endpoint's faults."""
        while self._stale:
            await self._database.write(_drop, scope_id=self._stale.pop())
        lacking = await self._database.read(_lacking, besides=self._damaged)
        if lacking is None:
            return False
        scope_id, index_id, start = lacking
        try:
            texts, state, keys = await self._database.read(
                _texts, vault=self._vault, scope_id=scope_id, start=start, count=self._at_once
            )
        except (Tampered, GoferError) as error:
            log.info("memory.not_embedded", scope=scope_id, error=str(error))
            self._damaged.add(index_id)
            return False
        try:
            made = await self._embed(texts)
        except EmbeddingsFailed as error:
            if await self.probe():
                self._fail(str(error))
                return False
            if len(texts) > 1:  # one of them may be what it refuses, or they are too many for it
                self._at_once = len(texts) // 2
                return True
            log.info("memory.not_embedded", scope=scope_id, error=f"of one text alone, {error}")
            made = [array("f")]
        else:
            self._at_once = min(BATCH, self._at_once * 2)
        packed = [self._packed(vector) for vector in made]
        kept = await self._database.write(_keep, state=state, keys=keys, start=start, packed=packed)
        if not kept:
            self._fail(ANOTHER_SIZE)
        else:
            self.problem = ""
        return kept

    async def _embed(self, texts: Sequence[str]) -> list[array[float]]:
        """A vector for each text; an empty one where there is no text."""
        wanted = [text[:MAX_CHARACTERS] for text in texts if text]
        vectors = iter(await self._ask(wanted, BATCH_TIMEOUT) if wanted else [])
        return [next(vectors) if text else array("f") for text in texts]

    async def near(self, query: str, scopes: Mapping[str, Keys]) -> dict[tuple[str, str | int], float]:
        """How near the newest memories of these scopes are to a query, by scope and memory; empty when it fails."""
        try:
            (asked,) = await self._ask([query[:MAX_CHARACTERS]], QUERY_TIMEOUT)
        except EmbeddingsFailed as error:
            self._fail(str(error))
            return {}
        head = self._packed(asked)[:_HEAD]
        rows = await self._database.read(_newest, scopes=scopes)
        found, fitting = await asyncio.to_thread(_compare, rows, scopes, asked, head)
        if rows and not fitting:
            self._stale |= {state.scope_id for state, *_ in rows}
            self._fail(ANOTHER_SIZE)
        return found

    def _fail(self, why: str) -> None:
        if why != self.problem:
            log.warning(
                "memory.embeddings_failed", reason=why, meaning="memories are searched by words alone"
            )
        self.problem = why

    def _packed(self, vector: array[float]) -> bytes:
        return _fingerprint(self._endpoint.model, len(vector)) + vector.tobytes()

    async def _ask(self, texts: Sequence[str], timeout: float) -> list[array[float]]:
        try:
            async with asyncio.timeout(timeout):
                vectors = await self._post(texts)
        except TimeoutError:
            raise EmbeddingsFailed(f"it did not answer within {timeout:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EmbeddingsFailed(f"it cannot be reached ({type(error).__name__})") from error
        if self.problem != ANOTHER_SIZE:
            self.problem = ""
        return vectors

    async def _headers(self) -> dict[str, str]:
        name = self._endpoint.secret
        if not name:
            return {}
        read = partial(get_secret, vault=self._vault, workspace_id=FIRST_WORKSPACE, name=name)
        try:
            secret = await self._database.read(read)
        except GoferError as error:
            raise EmbeddingsFailed(f"the secret {name[:80]!r} cannot be read") from error
        return {"authorization": f"Bearer {secret.reveal()}"}

    async def probe(self) -> str:
        """What is wrong with the endpoint now; empty when it answers."""
        try:
            await self._ask(["Is anybody there?"], QUERY_TIMEOUT)
        except EmbeddingsFailed as error:
            self._fail(str(error))
        return self.problem

    async def _post(self, texts: Sequence[str]) -> list[array[float]]:
        headers = await self._headers()
        body = {"model": self._endpoint.model, "input": list(texts), "encoding_format": "float"}
        url = self._endpoint.url.rstrip("/") + "/embeddings"
        async with self._http.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise EmbeddingsFailed(f"it answered {response.status_code}")
            data = b""
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_RESPONSE:
                    raise EmbeddingsFailed("its answer is too large")
        return _read(data, len(texts))


def fuse(hits: Sequence[Hit], near: Mapping[tuple[str, str | int], float], limit: int) -> list[Hit]:
    """Hits by words and by meaning as one list: scores are added, and meaning counts for less."""
    best = max((hit.score for hit in hits), default=1.0) or 1.0
    found = {(hit.scope_id, hit.memory): hit for hit in hits}
    for place, cosine in near.items():
        if cosine < MIN_COSINE:
            continue
        hit = found.get(place) or Hit(*place, 0.0, 0.0)
        found[place] = Hit(hit.scope_id, hit.memory, hit.score + WEIGHT * cosine * best, hit.share)
    return sorted(found.values(), key=lambda hit: -hit.score)[:limit]


def _read(data: bytes, count: int) -> list[array[float]]:
    """The vectors of an answer, in the order of what was asked."""
    try:
        items = sorted(json.loads(data)["data"], key=lambda item: int(item["index"]))
        vectors = [array("f", item["embedding"]) for item in items]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise EmbeddingsFailed("its answer is no list of vectors") from error
    sizes = {len(vector) for vector in vectors}
    if len(vectors) != count or len(sizes) != 1 or not 0 < sizes.pop() <= MAX_DIMENSIONS:
        raise EmbeddingsFailed("its answer has not one vector for each text, all of one size")
    return [_normal(vector) for vector in vectors]


def _normal(vector: array[float]) -> array[float]:
    length = math.sqrt(sum(map(mul, vector, vector)))
    if not math.isfinite(length):
        raise EmbeddingsFailed("its answer has numbers that are none")
    return array("f", (each / length for each in vector)) if length else vector


def _fingerprint(model: str, size: int) -> bytes:
    """Says which model made a vector, and how long it is. One without a text fits every model."""
    return hashlib.sha256(f"{model} {size}".encode()).digest()[:_HEAD] if size else bytes(_HEAD)


def _lacking(connection: Connection, besides: Collection[int]) -> tuple[str, int, int] | None:
    """A scope with memories that have no vector, its index, and the number of the first of them."""
    columns = memory_postings.c
    done = (
        select(func.coalesce(func.max(columns.block) + 1, 0))
        .where(columns.index_id == memory_indexes.c.id, columns.term == VECTOR)
        .scalar_subquery()
    )
    indexes = memory_indexes.c
    query = select(indexes.scope_id, indexes.id, done.label("start"))
    query = query.where(indexes.documents > done, indexes.id.not_in(besides))
    row = connection.execute(query.order_by(indexes.id.desc()).limit(1)).first()
    return (str(row.scope_id), int(row.id), int(row.start)) if row is not None else None


def _texts(
    connection: Connection, vault: Vault, scope_id: str, start: int, count: int
) -> tuple[list[str], IndexState, Keys]:
    """The texts of the next memories of a scope; empty for what is not there any more."""
    keys, state = open_scope(connection, vault, scope_id), read_index(connection, scope_id)
    if state is None:
        raise NotFound("The index is gone.")
    texts = []
    for memory in read_names(connection, state, keys, start, count):
        memory_id = turn_id(split_scope(scope_id)[1], memory) if isinstance(memory, int) else str(memory)
        try:
            texts.append(resolve(connection, vault, memory_id, scopes=(scope_id,)).text.strip())
        except GoferError:
            texts.append("")
    return texts, state, keys


def _drop(connection: Connection, scope_id: str) -> None:
    """Take a scope's vectors away, so that they are made anew."""
    state = read_index(connection, scope_id)
    if state is not None:
        columns = memory_postings.c
        connection.execute(
            delete(memory_postings).where(columns.index_id == state.id, columns.term == VECTOR)
        )


def _keep(connection: Connection, state: IndexState, keys: Keys, start: int, packed: Sequence[bytes]) -> bool:
    """Write vectors; False when those that are there are of another model or size, or damaged: they are deleted then,
    and made anew."""
    columns = memory_postings.c
    here = (columns.index_id == state.id) & (columns.term == VECTOR)
    now = read_index(connection, state.scope_id)
    if now is None or now.id != state.id:
        return True  # indexed anew meanwhile
    there = connection.execute(select(func.coalesce(func.max(columns.block) + 1, 0)).where(here)).scalar_one()
    if there != start:
        return True  # another process was quicker
    heads = {each[:_HEAD] for each in packed} - {bytes(_HEAD)}
    known = connection.execute(
        select(columns.block, columns.sealed).where(here).order_by(columns.block.desc())
    )
    for row in known.fetchmany(BATCH):
        try:
            head = keys.seal.open(row.sealed, vector_place(state.scope_id, row.block))[:_HEAD]
        except Tampered:
            head = b""
        if head != bytes(_HEAD) and (not head or (heads and head not in heads)):
            _drop(connection, state.scope_id)
            return False
    seal_vectors(connection, state, keys, start, packed)
    return True


def _newest(
    connection: Connection, scopes: Mapping[str, Keys]
) -> list[tuple[IndexState, list[Any], int, list[Any]]]:
    """The newest vectors of each scope, sealed, with the names of their memories. What a damaged index has is left to
    the search by words, which says so."""
    found = []
    for scope_id, keys in scopes.items():
        state = read_index(connection, scope_id)
        if state is None:
            continue
        columns = memory_postings.c
        query = (
            select(columns.block, columns.sealed)
            .where(columns.index_id == state.id, columns.term == VECTOR)
            .order_by(columns.block.desc())
            .limit(MAX_COMPARED)
        )
        rows = list(connection.execute(query).all())
        first = min((row.block for row in rows), default=0)
        with contextlib.suppress(Tampered):
            names = read_names(connection, state, keys, first, MAX_COMPARED) if rows else []
            found += [(state, rows, first, names)] if names else []
    return found


def _compare(
    found: Sequence[tuple[IndexState, list[Any], int, list[Any]]],
    scopes: Mapping[str, Keys],
    asked: array[float],
    head: bytes,
) -> tuple[dict[tuple[str, str | int], float], bool]:
    """The cosine of each vector with the query; and whether any is of the same model and size."""
    near: dict[tuple[str, str | int], float] = {}
    for state, rows, first, names in found:
        for row in rows:
            try:
                plain = scopes[state.scope_id].seal.open(row.sealed, vector_place(state.scope_id, row.block))
            except Tampered:
                continue
            if plain[:_HEAD] == head and row.block - first < len(names):
                vector = array("f")
                vector.frombytes(plain[_HEAD:])
                near[state.scope_id, names[row.block - first]] = sum(map(mul, asked, vector))
    return near, bool(near)
