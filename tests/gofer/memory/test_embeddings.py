"""Embeddings as a second signal: meaning is found where words differ, and whatever is wrong, words still find."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import delete, select, update

from gofer.memory import changes
from gofer.memory import embeddings as module
from gofer.memory.embeddings import Embeddings, Endpoint
from gofer.memory.recall import Recall, reindex
from gofer.memory.records import NewMemory
from gofer.memory.scopes import person_scope
from gofer.secrets.secret_store import put_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import memory_postings
from gofer.vault.redaction import Secret
from gofer_standins import loopback
from gofer_standins.openai import Embedder
from support.web_server import House
from support.world import World

NOTES = ("My physician is Dr Grey.", "The ferry leaves at nine.", "Bread is in the cupboard.")
SCOPE = person_scope("person_1")


class Library:
    """Notes that can be searched, and an endpoint."""

    def __init__(self, world: World, recall: Recall, service: Embedder) -> None:
        self.world, self.recall, self.service = world, recall, service

    @property
    def problem(self) -> str:
        assert self.recall.embeddings is not None
        return self.recall.embeddings.problem

    async def note(self, text: str) -> None:
        new = NewMemory("note", SCOPE, text, "owner")
        await self.world.run(changes.remember, vault=self.world.vault, new=new)

    async def fill(self) -> None:
        while await self.recall.tick():
            pass

    async def found(self, query: str) -> list[str]:
        return [each.memory.text for each in (await self.recall.search([SCOPE], query)).found]

    async def vectors(self) -> list[bytes]:
        rows = await self.world.rows(select(memory_postings.c.sealed).where(memory_postings.c.term == 2))
        return [bytes(row.sealed) for row in rows]


@pytest.fixture
async def library(world: World) -> AsyncIterator[Library]:
    service = Embedder(meanings={"doctor": "physician", "physician": "physician"})
    put = partial(put_secret, workspace_id=FIRST_WORKSPACE, name="embeddings", value=Secret(service.key))
    await world.run(partial(put, vault=world.vault))
    async with loopback.serve(service.app) as url, httpx2.AsyncClient() as http:
        endpoint = Endpoint(f"{url}/v1", service.model, "embeddings")
        made = Embeddings(world.database, world.vault, http, endpoint)
        here = Library(world, Recall(world.database, world.vault, made), service)
        for text in NOTES:
            await here.note(text)
        yield here


async def test_meaning_is_found_where_no_word_fits_and_words_come_first(library: Library) -> None:
    await library.fill()
    assert await library.found("doctor") == ["My physician is Dr Grey."]
    assert (await library.found("ferry doctor"))[0] == "The ferry leaves at nine.", "words weigh more"
    assert library.problem == ""
    assert library.service.refused == []
    assert len(await library.vectors()) == len(NOTES)


async def test_nothing_is_embedded_when_something_is_noted_or_searched(library: Library) -> None:
    assert await library.found("ferry") == ["The ferry leaves at nine."]
    assert library.service.received == [["ferry"]], "the query alone"


async def test_vectors_are_sealed(library: Library) -> None:
    await library.fill()
    plain = [module._normal(array("f", library.service._vector(text))).tobytes() for text in NOTES]
    for sealed in await library.vectors():
        assert not any(vector[:32] in sealed for vector in plain)


@pytest.mark.parametrize(
    "fault", ["slow", "server_error", "garbage", "too_few", "not_finite", "gone", "key", "secret", "url"]
)
async def test_an_endpoint_that_fails_leaves_words(
    library: Library, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await library.fill()
    monkeypatch.setattr(module, "QUERY_TIMEOUT", 0.3)
    monkeypatch.setattr(module, "BATCH_TIMEOUT", 0.3)
    if fault == "gone":
        assert library.recall.embeddings is not None
        library.recall.embeddings._endpoint = Endpoint("http://127.0.0.1:9/v1", library.service.model)
    elif fault in ("secret", "url"):
        assert library.recall.embeddings is not None
        url = "http://[::1" if fault == "url" else library.recall.embeddings._endpoint.url
        library.recall.embeddings._endpoint = Endpoint(
            url, library.service.model, "nobody" if fault == "secret" else ""
        )
    elif fault == "key":
        library.service.key = "another"
    else:
        library.service.fault = fault  # type: ignore[assignment]
    assert await library.found("ferry") == ["The ferry leaves at nine."]
    assert library.problem
    assert library.recall.embeddings is not None
    assert await library.recall.embeddings.probe() == library.problem
    await library.note("The harbour is closed.")
    await library.fill()
    assert await library.found("harbour") == ["The harbour is closed."], "indexed all the same"
    if fault in ("slow", "server_error", "garbage"):
        library.service.fault = ""
        await library.fill()
        assert (await library.found("doctor"))[0] == "My physician is Dr Grey."
        assert library.problem == ""


async def test_dimensions_that_change_are_said_and_made_anew(library: Library) -> None:
    await library.fill()
    library.service.dimensions = 96
    assert await library.found("doctor") == [], "old vectors are compared with none of another size"
    assert "another size" in library.problem
    assert await library.found("ferry") == ["The ferry leaves at nine."]
    await library.fill()
    assert await library.found("doctor") == ["My physician is Dr Grey."]
    assert library.problem == ""
    library.service.dimensions = 32
    await library.note("The harbour is closed.")
    await library.fill()
    await library.fill()
    assert await library.found("doctor") == ["My physician is Dr Grey."]
    assert library.problem == ""
    assert len(await library.vectors()) == len(NOTES) + 1


async def test_a_text_that_is_always_refused_holds_up_no_other(library: Library) -> None:
    library.service.unwanted = "ferry"
    for number in range(40):
        await library.note(f"Crate {number} is in the harbour.")
    other = NewMemory("note", person_scope("person_2"), "Her physician is Dr Brown.", "owner")
    await library.world.run(changes.remember, vault=library.world.vault, new=other)
    await library.fill()
    assert (await library.found("doctor"))[0] == "My physician is Dr Grey."
    hers = await library.recall.search([person_scope("person_2")], "doctor")
    assert [each.memory.text for each in hers.found] == ["Her physician is Dr Brown."]
    assert library.problem == ""
    assert len(library.service.received) < 20, "not each text by itself"
    library.service.unwanted = ""
    assert (await library.found("ferry"))[0] == "The ferry leaves at nine.", "by words"


async def test_a_server_that_answers_again_is_not_called_broken(library: Library) -> None:
    await library.fill()
    for asked_again in ("search", "doctor"):
        library.service.fault = "server_error"
        await library.found("ferry")
        assert library.problem
        library.service.fault = ""
        if asked_again == "search":
            await library.found("ferry")
        else:
            assert library.recall.embeddings is not None
            assert await library.recall.embeddings.probe() == ""
        assert library.problem == ""


async def test_another_scope_is_never_compared_with(library: Library) -> None:
    await library.fill()
    other = await library.recall.search([person_scope("person_2")], "doctor")
    assert other.found == []


@pytest.mark.parametrize("damage", ["names", "no names", "vectors"])
async def test_damaged_rows_leave_words_and_hold_up_no_other_scope(library: Library, damage: str) -> None:
    other = person_scope("person_2")
    new = NewMemory("note", other, "Her physician is Dr Brown.", "owner")
    await library.fill()
    term = memory_postings.c.term == (2 if damage == "vectors" else 1)
    if damage == "no names":
        await library.world.run(lambda connection: connection.execute(delete(memory_postings).where(term)))
    else:
        flipped = update(memory_postings).where(term).values(sealed=b"\x02" + bytes(60))
        await library.world.run(lambda connection: connection.execute(flipped))
    assert await library.found("doctor") == []
    await library.note("The harbour is closed.")
    await library.world.run(changes.remember, vault=library.world.vault, new=new)
    await library.fill()
    await library.fill()
    found = await library.recall.search([other], "doctor")
    assert [each.memory.text for each in found.found] == ["Her physician is Dr Brown."]
    if damage == "vectors":  # which are made anew
        assert await library.found("doctor") == ["My physician is Dr Grey."]
    else:
        assert (await library.recall.search([SCOPE], "ferry")).degraded.keys() == {SCOPE}
        await library.world.run(reindex, scope_id=SCOPE)
        await library.fill()
        assert await library.found("doctor") == ["My physician is Dr Grey."]


def test_doctor_and_the_memory_page_say_that_words_are_searched_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, embeddings_url="http://127.0.0.1:9/v1", embeddings_model="none")
    try:
        owner = house.owner()
        api, browser = house.api(house.token(owner)), house.browser()
        browser.follow(house.link(owner))
        assert api.post("/memories", json={"scope": "agent:gofer", "text": "Tides turn at noon"}).is_success
        assert "Tides turn at noon" in browser.get("/memory?query=tide").text
        assert "searched by words alone" in browser.get("/memory").text
        assert "gofer_memory_degraded 1.0" in browser.get("/metrics").text
        assert "searched by words alone" in api.get("/doctor").text
    finally:
        house.close()
