"""Recall: how many of the turns that answer a question are found, how fast, and how large the index is.

Beside plain FTS5 over the words of each turn, terms joined with OR, in the same run. The corpus is our own, in three
languages; `python -m benchmarks.recall FILE` takes any file of LoCoMo's shape: conversations of dated sessions with
turns, and questions with the ids of the turns that answer them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import re
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, select, text, update

from benchmarks import intake, ours, postgres
from benchmarks.measure import percentile
from benchmarks.report import Row, table
from benchmarks.webhook import load as webhook_load
from benchmarks.webhook import serving, signed_request
from gofer.app import Platform
from gofer.memory.index import Document, Keys, add
from gofer.memory.search import search
from gofer.memory.terms import text_terms
from gofer.store.database import Database
from gofer.store.encryption import conversation_key
from gofer.store.messages import open_stored, seal_message
from gofer.store.tables import Trust, messages
from gofer.vault.envelope import DataKey, MacKey, Vault
from gofer.web.app import public_app

GROUP = "recall"
CORPUS = Path(__file__).with_name("recall_corpus.json")
DEPTHS = (5, 10, 50)
SIZES = (6_000, 100_000)
ROOMS = 100
"""Private conversations of one person that are searched together."""
QUERIES = 150
_BATCH = 8192


@dataclass(frozen=True, slots=True)
class SampleTurn:
    """One thing that was said."""

    id: str
    speaker: str
    text: str
    at: float
    session: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation, and questions with the ids of the turns that answer them."""

    name: str
    turns: list[SampleTurn]
    questions: list[tuple[str, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class BenchKeys:
    """Keys of a scope."""

    seal: DataKey = field(default_factory=lambda: DataKey(os.urandom(32)))

    def index(self, generation: int = 0) -> MacKey:
        return self.seal.derive(str(generation))


def load(path: Path) -> list[Sample]:
    """The conversations of a file of LoCoMo's shape."""
    return [_sample(each) for each in json.loads(path.read_text())]


def _sample(data: dict[str, object]) -> Sample:
    said = data["conversation"]
    assert isinstance(said, dict)
    turns = []
    numbers = sorted(int(found[1]) for name in said if (found := re.fullmatch(r"session_(\d+)", name)))
    for number in numbers:
        at = _time(str(said[f"session_{number}_date_time"]))
        for turn in said[f"session_{number}"]:
            turns.append(SampleTurn(turn["dia_id"], turn["speaker"], turn.get("text") or "", at, number))
    known = {turn.id for turn in turns}
    questions = []
    for each in data["qa"]:  # type: ignore[attr-defined]
        evidence = frozenset(re.findall(r"D\d+:\d+", " ".join(each.get("evidence") or []))) & known
        if evidence:  # some adversarial questions have none
            questions.append((str(each["question"]), evidence))
    return Sample(str(data.get("sample_id", "")), turns, questions)


def _time(written: str) -> float:
    return datetime.strptime(written, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()


def documents(turns: Sequence[SampleTurn]) -> list[Document]:
    """Turns as Gofer indexes them."""
    made: list[Document] = []
    for number, turn in enumerate(turns):
        before = turns[number - 1] if number and turns[number - 1].session == turn.session else None
        terms = text_terms(turn.text, speaker=turn.speaker, at=turn.at, before=before.text if before else "")
        made.append(Document(number, terms, starts=before is None))
    return made


async def index(database: Database, scope: str, keys: Keys, turns: Sequence[SampleTurn]) -> None:
    """Index a whole conversation."""
    made = await asyncio.to_thread(documents, turns)
    for start in range(0, len(made), _BATCH):
        await add(database, scope, keys, made[start : start + _BATCH])


class Fts5:
    """The words of each turn in SQLite's own index, with its own tokenizer and ranking."""

    def __init__(self, path: Path, turns: Sequence[SampleTurn]) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.execute("CREATE VIRTUAL TABLE turns USING fts5(text)")
        rows = ((number, turn.text) for number, turn in enumerate(turns, 1))
        self._connection.executemany("INSERT INTO turns(rowid, text) VALUES (?, ?)", rows)
        self._connection.commit()

    def search(self, query: str, limit: int) -> list[int]:
        """Numbers of turns, best first."""
        words = re.findall(r"\w+", query)
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        found = self._connection.execute(
            "SELECT rowid FROM turns WHERE turns MATCH ? ORDER BY bm25(turns) LIMIT ?", (match, limit)
        )
        return [int(number) - 1 for (number,) in found]

    def close(self) -> None:
        self._connection.close()


Shares = dict[int, float]
"""Hundredths of the evidence that are among the first so many."""


async def recall_of(database: Database, samples: Sequence[Sample]) -> Shares:
    """What Gofer's index finds."""
    found: list[tuple[list[str], frozenset[str]]] = []
    for sample in samples:
        keys, scope = BenchKeys(), f"conversation:{sample.name}"
        await index(database, scope, keys, sample.turns)
        for question, evidence in sample.questions:
            hits = (await search(database, {scope: keys}, question, max(DEPTHS))).hits
            found.append(([sample.turns[int(hit.memory)].id for hit in hits], evidence))
    return _shares(found)


def recall_of_fts5(folder: Path, samples: Sequence[Sample]) -> Shares:
    """What FTS5 finds."""
    found: list[tuple[list[str], frozenset[str]]] = []
    for number, sample in enumerate(samples):
        with contextlib.closing(Fts5(folder / f"fts5-{number}.db", sample.turns)) as fts5:
            for question, evidence in sample.questions:
                hits = fts5.search(question, max(DEPTHS))
                found.append(([sample.turns[hit].id for hit in hits], evidence))
    return _shares(found)


def _shares(found: Sequence[tuple[list[str], frozenset[str]]]) -> Shares:
    wanted = sum(len(evidence) for _, evidence in found)
    return {
        depth: 100 * sum(len(evidence & set(ids[:depth])) for ids, evidence in found) / wanted
        for depth in DEPTHS
    }


def long_talk(count: int, seed: int = 7) -> tuple[list[SampleTurn], list[str]]:
    """Turns of a long-running chat and questions to it, made of words that are as common as words are."""
    dice = random.Random(seed)
    syllables = [first + last for first in "bdfgklmnprstvz" for last in ("a", "el", "in", "o", "ur", "ist")]
    words = ["".join(dice.choices(syllables, k=dice.choice((2, 2, 3)))) for _ in range(30_000)]
    weights = [1 / (rank + 2.7) for rank in range(len(words))]
    begin = 1_700_000_000.0
    turns = []
    for number in range(count):
        said = " ".join(dice.choices(words, weights, k=dice.randint(5, 35)))
        turns.append(
            SampleTurn(str(number), "Ada" if number % 2 else "Ben", said, begin + number * 600, number // 20)
        )
    asked = [" ".join(dice.choices(words, weights, k=dice.randint(3, 8))) for _ in range(QUERIES)]
    return turns, [f"What did Ada say about {query}?" for query in asked]


@dataclass(frozen=True, slots=True)
class Speed:
    """Milliseconds of queries, and the size of the index in multiples of the text."""

    ours: list[float]
    fts5: list[float]
    size: float


async def speed_of(database: Database, folder: Path, count: int, rooms: int = 1) -> Speed:
    """Queries to this many memories, in one scope or in several, in turns with FTS5."""
    turns, queries = await asyncio.to_thread(long_talk, count)
    scopes = {f"conversation:{count}-{rooms}-{number}": BenchKeys() for number in range(rooms)}
    before = await database.read(_index_size)
    for number, (scope, keys) in enumerate(scopes.items()):
        await index(database, scope, keys, turns[count * number // rooms : count * (number + 1) // rooms])
    if database.dialect == "postgresql":
        await database.write(lambda connection: connection.execute(text("ANALYZE memory_posting")))
    size = (await database.read(_index_size) - before) / sum(len(turn.text.encode()) for turn in turns)
    mine: list[float] = []
    theirs: list[float] = []
    with contextlib.closing(Fts5(folder / f"speed-{count}-{rooms}-{database.dialect}.db", turns)) as fts5:
        for query in queries:
            began = time.perf_counter()
            await search(database, scopes, query)
            mine.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            fts5.search(query, 10)
            theirs.append((time.perf_counter() - began) * 1000)
    return Speed(mine, theirs, size)


def _index_size(connection: Connection) -> int:
    """Bytes of the postings: on Postgres with their index, on SQLite with their tree."""
    if connection.dialect.name == "postgresql":
        return int(connection.execute(text("SELECT pg_total_relation_size('memory_posting')")).scalar_one())
    pages = "SELECT (SELECT page_count FROM pragma_page_count()) * (SELECT page_size FROM pragma_page_size())"
    return int(connection.execute(text(pages)).scalar_one())


@contextlib.asynccontextmanager
async def databases() -> AsyncIterator[dict[str, Database]]:
    """Both, empty."""
    async with (
        postgres.server() as server,
        ours.platform() as small,
        ours.platform(await server.fresh()) as large,
    ):
        yield {"SQLite": small.database, "Postgres": large.database}


def _recall_rows(name: str, shares: Shares, against: Shares, target: float | None) -> Iterator[Row]:
    for depth in DEPTHS:
        aim = target if depth == 10 else None
        yield Row(GROUP, f"R@{depth}, {name}", shares[depth], "%", "FTS5", against[depth], at_least=aim)


def _speed_rows(of: str, speed: Speed) -> Iterator[Row]:
    for hundredths, aim in ((50, None), (95, 4.0)):
        mine, theirs = (percentile(some, hundredths) for some in (speed.ours, speed.fts5))
        yield Row(GROUP, f"query p{hundredths}, {of}", mine, "ms", "FTS5", theirs, at_most=aim)


async def main(quick: bool, path: Path | None = None) -> list[Row]:
    """The figures of our own corpus, or of a file."""
    samples = load(path or CORPUS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gofer-recall-") as made:
        folder = Path(made)
        plain = await asyncio.to_thread(recall_of_fts5, folder, samples)
        async with databases() as both:
            for name, database in both.items():
                shares = await recall_of(database, samples)
                rows += _recall_rows(name, shares, plain, 1.15 if path is None else None)
                for count in SIZES[:1] if quick else SIZES:
                    speed = await speed_of(database, folder, count)
                    of = f"{count:,} memories, {name}"
                    rows += _speed_rows(of, speed)
                    rows.append(Row(GROUP, f"index, times the text, {of}", speed.size, "×", at_most=3.0))
                    speed = await speed_of(database, folder, count, ROOMS)
                    rows += _speed_rows(f"{count:,} memories in {ROOMS} conversations, {name}", speed)
    return rows + (await intake_beside_indexing(quick) if path is None else [])


@dataclass(slots=True)
class Arm:
    """An instance that takes messages in, with memory or without."""

    platform: Platform
    port: int
    connection: str
    key: bytes
    rates: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    """Microseconds of the thread that takes requests, for each request."""
    whole: list[float] = field(default_factory=list)
    """The same of the whole process, so with what the index takes."""


async def intake_beside_indexing(quick: bool) -> list[Row]:
    """Webhooks, acknowledged when they are durable: with memory, which indexes what came before, and without, in turns.
    What disturbs a round only makes it slower, so the best of each counts."""
    seconds, rounds = (1.5, 4) if quick else (4.0, 6)
    words = [turn.text for turn in long_talk(5_000)[0]]
    async with _arm(memory=True) as on, _arm(memory=False) as off:
        for arm in (on, off):
            await _take_in(arm, words, "first", seconds)
        gc.collect()
        gc.freeze()  # as in `gofer serve`
        indexed = 0
        for number in range(rounds):
            for arm in (on, off) if number % 2 else (off, on):
                await arm.platform.database.write(partial(_admit_all, vault=arm.platform.vault))
                before = await arm.platform.database.read(_documents)
                await _take_in(arm, words, f"r{number}", seconds, measured=True)
                indexed += await arm.platform.database.read(_documents) - before
    assert indexed, "nothing was indexed meanwhile"
    told = f"{_CLIENTS} connections"
    return [
        Row(GROUP, f"acknowledged, {told}", max(on.rates), "requests/s", "memory off", max(off.rates), at_least=0.9,
            note=f"{indexed} messages indexed meanwhile"),
        Row(GROUP, f"processor, intake, {told}", min(on.thread), "µs", "memory off", min(off.thread), at_most=1.1),
        Row(GROUP, f"processor, with the index, {told}", min(on.whole), "µs", "memory off", min(off.whole)),
    ]  # fmt: skip


_CLIENTS = 20
_ROOMS = 5
"""Of each connection."""


@contextlib.asynccontextmanager
async def _arm(*, memory: bool) -> AsyncIterator[Arm]:
    async with contextlib.AsyncExitStack() as stack:
        platform = await stack.enter_async_context(ours.platform(memory_v1=memory))
        platform.intake.gate.max_waiting = 10**9  # nothing works the jobs off here
        port = await stack.enter_async_context(serving(public_app(platform)))
        connection_id = await intake.connect(platform)
        key = (await platform.accounts.get(connection_id)).account.secret("signing_key").encode()
        if memory:
            stack.callback(asyncio.create_task(platform.recall.keep_indexed()).cancel)
        yield Arm(platform, port, connection_id, key)


async def _take_in(
    arm: Arm, words: Sequence[str], prefix: str, seconds: float, *, measured: bool = False
) -> None:
    """Each connection has rooms of its own."""
    each = int(8000 * seconds) // _CLIENTS + 50
    requests = [
        [
            signed_request(
                f"/hooks/{arm.connection}",
                arm.key,
                f"{prefix}-{client}-{number}",
                f"{client}-{number % _ROOMS}",
                words[(client * each + number) % len(words)],
            )
            for number in range(each)
        ]
        for client in range(_CLIENTS)
    ]
    thread, whole = time.thread_time(), time.process_time()
    loaded = await webhook_load(arm.port, requests, seconds)
    if measured:
        arm.rates.append(loaded.rate)
        arm.thread.append((time.thread_time() - thread) / len(loaded.taken) * 1e6)
        arm.whole.append((time.process_time() - whole) / len(loaded.taken) * 1e6)


def _admit_all(connection: Connection, vault: Vault) -> None:
    """As a run would that answers: the author of each message is known from here on, so it can be indexed."""
    waiting = select(messages).where(messages.c.trust == Trust.UNKNOWN)
    keys: dict[str, DataKey] = {}
    for row in connection.execute(waiting).all():
        place = row.conversation_id
        keys[place] = keys.get(place) or conversation_key(connection, vault, place)
        stored = open_stored(keys[place], row)
        sealed = seal_message(
            keys[place], place, row.seq, stored.message, Trust.MEMBER, came_by=stored.connection_id
        )
        here = (messages.c.conversation_id == place) & (messages.c.seq == row.seq)
        connection.execute(update(messages).where(here).values(trust=Trust.MEMBER, sealed=sealed))


def _documents(connection: Connection) -> int:
    return int(connection.execute(text("SELECT coalesce(sum(documents), 0) FROM memory_index")).scalar_one())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument(
        "file", nargs="?", type=Path, help="a file of LoCoMo's shape; our own corpus by default"
    )
    parser.add_argument("--quick", action="store_true", help="6,000 memories only")
    given = parser.parse_args()
    print(table(asyncio.run(main(given.quick, given.file))))
