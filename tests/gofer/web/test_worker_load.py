"""What an agent's workers have to do, by the API and on the agent's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from gofer.goals.load import count_tasks
from gofer.store.tables import agents, events
from support.web_server import House, csrf_in


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    made = House(folder)
    yield made
    made.close()


def test_the_load_is_shown_and_cleared_by_an_operator(house: House) -> None:
    owner = house.owner()
    api, viewer = house.api(house.token(owner)), house.api(house.token(house.member("eve", "viewer")))
    shown = api.get("/agents/gofer/load").json()
    assert (shown["total"], shown["saturated"], shown["prolonged_saturation"]) == (0, False, False)

    def busy(connection: Connection) -> None:
        agent_id = connection.execute(select(agents.c.id)).scalar_one()
        count_tasks(connection, agent_id, accepted=5, dropped=2)

    house.write(busy)
    shown = viewer.get("/agents/gofer/load").json()
    assert (shown["accepted"], shown["dropped"], shown["total"]) == (5, 2, 7)
    assert viewer.post("/agents/gofer/load/clear", json={}).status_code == 403
    assert api.get("/agents/nobody/load").status_code == 404
    assert api.post("/agents/gofer/load/clear", json={"fresh": "x"}).status_code == 400
    cleared = api.post("/agents/gofer/load/clear", json={"fresh": True})
    assert (cleared.status_code, cleared.json()["total"]) == (200, 0)
    query = select(events.c.data).where(events.c.kind == "worker.saturated")
    last = house.read(lambda connection: connection.execute(query).scalars().all())[-1]
    assert (last["agent"], last["fresh"], last["accepted"]) == ("gofer", True, 0)


def test_buttons_of_the_agents_page_clear_it(house: House) -> None:
    owner, browser = house.owner(), house.browser()
    assert browser.follow(house.link(owner)).status_code == 303
    for fields in ({}, {"fresh": "yes"}):
        house.write(_refused)
        page = browser.get("/agents/gofer").text
        assert "Clear what waits and begin afresh" in page
        assert browser.post("/agents/gofer/load/clear", csrf=csrf_in(page), **fields).status_code == 303
        shown = house.api(house.token(owner)).get("/agents/gofer/load").json()
        assert (shown["total"], shown["saturated"]) == (0, False)


def _refused(connection: Connection) -> None:
    agent_id = connection.execute(select(agents.c.id)).scalar_one()
    count_tasks(connection, agent_id, accepted=1, dropped=1)
