"""The sealed index: the same on both databases, nothing readable in it, and better than plain full-text search."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.recall import CORPUS, load, recall_of, recall_of_fts5
from sqlalchemy import Connection, delete, select, update

from gofer.memory.index import (
    BLOCK,
    IDS,
    LENGTHS,
    Document,
    IndexMoved,
    add,
    add_to,
    drop_index,
    open_index,
    read_index,
    sweep_postings,
)
from gofer.memory.search import Found, search
from gofer.memory.terms import text_terms
from gofer.store.database import Database
from gofer.store.tables import memory_postings
from gofer.vault.envelope import DataKey, MacKey
from gofer.vault.errors import Tampered
from support.interleaving import interleave

HERE, THERE = "conversation:here", "person:there"


@dataclass(frozen=True, slots=True)
class KeysOfAScope:
    seal: DataKey = field(default_factory=lambda: DataKey(os.urandom(32)))

    def index(self, generation: int = 0) -> MacKey:
        return self.seal.derive(f"index {generation}")


def said(number: int | str, text: str, *, starts: bool = True, before: str = "") -> Document:
    return Document(number, text_terms(text, speaker="Ada", at=1_746_700_000.0, before=before), starts)


async def ids(database: Database, scopes: dict[str, KeysOfAScope], query: str) -> list[str | int]:
    return [hit.memory for hit in (await search(database, scopes, query)).hits]


async def test_what_was_said_is_found_by_any_of_its_words_in_any_form(database: Database) -> None:
    keys = KeysOfAScope()
    texts = ["The dentist moved our appointments", "We bought a yellow boat", "Nothing else happened"]
    await add(database, HERE, keys, [said(number, text) for number, text in enumerate(texts, 1)])
    assert await ids(database, {HERE: keys}, "yellow boats and submarines") == [2]
    assert await ids(database, {HERE: keys}, "which appointment?") == [1]
    assert await ids(database, {HERE: keys}, "zeppelin") == []


async def test_vowel_signs_points_and_accents_do_not_cut_a_word(database: Database) -> None:
    keys = KeysOfAScope()
    texts = [
        "किताब मेज पर है",
        "तालाब में कमल है",
        "மரம் பெரியது",
        "İstanbul'da yağmur",
        "הַסֵּפֶר שלי",
        "كِتَابٌ جديد",
        "می‌روم به خانه",
    ]
    await add(database, HERE, keys, [said(number, text) for number, text in enumerate(texts, 1)])
    asked = {"किताब": [1], "कमल": [2], "மரம்": [3], "istanbul": [4], "הספר": [5], "كتاب": [6], "میروم": [7]}
    assert {query: await ids(database, {HERE: keys}, query) for query in asked} == asked


async def test_two_processes_that_make_an_index_at_once_make_one(database: Database) -> None:
    for at in range(4):
        make = partial(open_index, scope_id=f"conversation:{at}")
        first, second = await interleave(database, make, make, at=at)
        assert first == second


async def test_a_month_is_found_in_every_language(database: Database) -> None:
    keys = KeysOfAScope()
    may, june = 1_746_700_000.0, 1_749_400_000.0
    await add(
        database,
        HERE,
        keys,
        [Document(1, text_terms("boat", at=may)), Document(2, text_terms("boat", at=june))],
    )
    for query in ("in May", "im Mai", "5月", "2025-05-08", "8. Mai 2025", "en mayo"):
        assert (await ids(database, {HERE: keys}, query))[:1] == [1], query


async def test_an_answer_is_found_by_the_words_of_the_question_before_it(database: Database) -> None:
    keys = KeysOfAScope()
    question, answer = "What is your cat called?", "Pepper!"
    await add(
        database,
        HERE,
        keys,
        [said(1, question), said(2, answer, starts=False, before=question), said(3, "Bye")],
    )
    assert set(await ids(database, {HERE: keys}, "name of the cat")) == {1, 2}


async def test_neighbours_share_their_score_within_a_sitting_only(database: Database) -> None:
    keys = KeysOfAScope()
    await add(
        database,
        HERE,
        keys,
        [said(1, "One"), said(2, "submarine", starts=False), said(3, "later"), said(4, "x")],
    )
    assert await ids(database, {HERE: keys}, "submarine") == [2, 1]


async def test_only_the_scopes_that_are_asked_for_are_searched(database: Database) -> None:
    here, there = KeysOfAScope(), KeysOfAScope()
    await add(database, HERE, here, [said(1, "the harbour")])
    await add(database, THERE, there, [said("mem_note", "the harbour, in private")])
    assert await ids(database, {HERE: here}, "harbour") == [1]
    assert set(await ids(database, {HERE: here, THERE: there}, "harbour")) == {1, "mem_note"}
    assert await ids(database, {}, "harbour") == []


async def test_documents_go_on_in_the_next_block(database: Database) -> None:
    keys = KeysOfAScope()
    await add(
        database, HERE, keys, [said(number, f"filler word{number % 50}") for number in range(BLOCK - 1)]
    )
    await add(database, HERE, keys, [said(number, "needle") for number in (5000, 5001, 5002)])
    assert set(await ids(database, {HERE: keys}, "needle")) == {5000, 5001, 5002}
    state = await database.read(lambda connection: read_index(connection, HERE))
    assert state is not None
    assert state.documents == BLOCK + 2


async def test_of_two_writers_one_is_told_that_the_index_has_moved(database: Database) -> None:
    keys = KeysOfAScope()
    state = await database.write(lambda connection: open_index(connection, HERE))
    both = [add_to(database, state, keys, [said(number, "boat")]) for number in (1, 2)]
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert [type(end) for end in ends if end] == [IndexMoved]
    assert len(await ids(database, {HERE: keys}, "boat")) == 1


async def test_no_word_and_no_memory_can_be_read_in_the_rows(database: Database) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said("mem_secretnote", "xylophone xylophone")])
    rows = await database.read(lambda connection: connection.execute(select(memory_postings)).all())
    seen = repr([tuple(row) for row in rows]).encode() + b"".join(bytes(row.sealed) for row in rows)
    assert b"xyloph" not in seen
    assert b"secretnote" not in seen
    other = KeysOfAScope()
    assert await ids(database, {HERE: other}, "xylophone") == []


async def test_a_flipped_byte_hides_no_other_row_and_is_reported(database: Database) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "harbour lights"), said(2, "harbour walls")])

    def flip(connection: Connection) -> None:
        term = next(iter(_hashes(keys, "lights")))
        row: Any = connection.execute(select(memory_postings).where(memory_postings.c.term == term)).one()
        flipped = bytes(row.sealed[:-1]) + bytes([row.sealed[-1] ^ 1])
        connection.execute(
            update(memory_postings).where(memory_postings.c.term == term).values(sealed=flipped)
        )

    await database.write(flip)
    found = await search(database, {HERE: keys}, "harbour lights")
    assert {hit.memory for hit in found.hits} == {1, 2}
    assert found.damaged == {HERE}


async def test_rows_of_different_ages_are_reported_and_break_no_search(database: Database) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "harbour lights")])
    lengths = memory_postings.c.term == 0
    old: Any = await database.read(
        lambda connection: connection.execute(select(memory_postings.c.sealed).where(lengths)).scalar_one()
    )
    await add(database, HERE, keys, [said(2, "harbour walls")])
    await database.write(
        lambda connection: connection.execute(update(memory_postings).where(lengths).values(sealed=old))
    )
    found = await search(database, {HERE: keys}, "lights walls")
    assert [hit.memory for hit in found.hits] == [1]
    assert found.damaged == {HERE}


@pytest.mark.parametrize("row", [LENGTHS, IDS])
async def test_a_row_that_is_gone_is_reported_and_nothing_takes_its_place(
    database: Database, row: int
) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "harbour lights"), said(2, "harbour walls")])
    gone = delete(memory_postings).where(memory_postings.c.term == row)
    await database.write(lambda connection: connection.execute(gone))
    for query in ("lights", "nothing that was said"):
        assert (await search(database, {HERE: keys}, query)) == Found([], frozenset({HERE}))
    with pytest.raises(Tampered):
        await add(database, HERE, keys, [said(3, "cellar")])


def _hashes(keys: KeysOfAScope, word: str) -> set[int]:
    from gofer.memory.terms import hashed, to_hash

    return {hashed(to_hash(term), keys.index()) for term in text_terms(word).counts}


async def test_a_dropped_index_is_gone_at_once_and_its_rows_soon(database: Database) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "harbour")])
    await add(database, THERE, keys, [said(2, "harbour")])
    await database.write(lambda connection: drop_index(connection, HERE))
    assert await ids(database, {HERE: keys}, "harbour") == []
    while await database.write(sweep_postings):
        pass
    left = await database.read(
        lambda connection: connection.execute(select(memory_postings.c.index_id)).all()
    )
    assert len({row.index_id for row in left}) == 1
    assert await ids(database, {THERE: keys}, "harbour") == [2]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "the and of is",
        "' OR 1=1; DROP TABLE memory_posting; --",
        'NEAR("a" "b") AND col:x* ^y',
        "🎉🎉",
        "ဘာသာစကား",
        "\ud800 lone \udfff",
        "\x00\x07\x1b[31m",
        "\u202egnihsif\u202c",
        "boat " * 20_000,
    ],
)
async def test_no_query_breaks_a_search(database: Database, query: str) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "a boat with a party 🎉 and ဘာသာစကား")])
    hits = await ids(database, {HERE: keys}, query)
    assert hits in ([], [1])
    assert bool(hits) == any(mark in query for mark in ("boat", "🎉", "ဘာ"))


async def test_a_text_of_a_megabyte_is_indexed_by_its_beginning(database: Database) -> None:
    keys = KeysOfAScope()
    await add(database, HERE, keys, [said(1, "harbour " + "\ud800x\x00\u202e" * 300_000 + " submarine")])
    assert await ids(database, {HERE: keys}, "harbour") == [1]
    assert await ids(database, {HERE: keys}, "submarine") == []


async def test_a_file_of_locomos_shape_is_read_with_its_oddities(database: Database, tmp_path: Path) -> None:
    """Sessions that are announced and never came, turns that are pictures, evidence in one string or not at all."""
    talk = [
        {
            "speaker": "Maya",
            "dia_id": "D1:1",
            "text": "I adopted a beagle.",
            "img_url": ["x"],
            "query": "dog",
        },
        {"speaker": "Tom", "dia_id": "D1:2", "blip_caption": "a photo of a beagle"},
        {"speaker": "Maya", "dia_id": "D1:3", "text": "His name is Biscuit."},
    ]
    later = [{"speaker": "Tom", "dia_id": "D2:1", "text": "We moved to Utrecht."}]
    asked = [
        {"question": "Who is the beagle Biscuit?", "answer": "a beagle", "evidence": ["D1:1; D1:3"], "category": 1},
        {"question": "Where does Tom live?", "answer": "Utrecht", "evidence": ["D2:1", "D", "D30:05"], "category": 2},
        {"question": "What is the cat called?", "adversarial_answer": "Biscuit", "category": 5},
        {"question": "Why a cat?", "evidence": None, "category": 5},
        {"question": "When?", "evidence": [], "category": 5},
    ]  # fmt: skip
    conversation = {
        "speaker_a": "Maya", "speaker_b": "Tom",
        "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": talk,
        "session_2_date_time": "12:09 am on 13 September, 2023", "session_2": later,
        "session_3_date_time": "10:37 am on 27 June, 2023",
    }  # fmt: skip
    more = {"sample_id": "conv-26", "event_summary": {}, "observation": {}, "session_summary": {}}
    file = tmp_path / "locomo10.json"
    file.write_text(json.dumps([{"qa": asked, "conversation": conversation, **more}]))
    (sample,) = load(file)
    assert [(turn.id, turn.session) for turn in sample.turns] == [
        ("D1:1", 1),
        ("D1:2", 1),
        ("D1:3", 1),
        ("D2:1", 2),
    ]
    assert [evidence for _, evidence in sample.questions] == [{"D1:1", "D1:3"}, {"D2:1"}]
    assert (await recall_of(database, [sample]))[5] == 100


async def test_recall_is_better_than_plain_full_text_search(database: Database, tmp_path: Path) -> None:
    """The gate of `benchmarks/recall.py`: in each language, and on both databases."""
    samples = load(CORPUS)
    assert sum(len(sample.turns) for sample in samples) >= 300
    assert sum(len(sample.questions) for sample in samples) >= 100
    for sample in samples:
        folder = tmp_path / sample.name
        folder.mkdir()
        ours, plain = await recall_of(database, [sample]), recall_of_fts5(folder, [sample])
        assert ours[10] >= max(1.15 * plain[10], 75), (sample.name, ours, plain)
