"""MCP servers of agents as people manage them: by the API, the command line's words, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from gofer.doctor import examine
from gofer_standins.loopback import serve
from support.async_bridge import Elsewhere
from support.hostile_mcp import Hostile
from support.web_server import House, cheap_passwords, csrf_in


@dataclass
class Scene:
    house: House
    api: httpx2.Client
    url: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    loop, serving = Elsewhere(), serve(Hostile().app)
    url = loop.run(serving.__aenter__())
    with cheap_passwords():
        house = House(folder)
        yield Scene(house, house.api(house.token(house.owner())), url)
        house.close()
    loop.run(serving.__aexit__(None, None, None))
    loop.close()


def test_a_server_is_added_tried_listed_and_removed(scene: Scene) -> None:
    api = scene.api
    wish = {"url": f"{scene.url}/broken", "tier": "read", "tiers": {"good": "write"}}
    assert api.put("/agents/gofer/mcp/ops", json={"settings": wish}).json() == {
        "agent": "gofer",
        "name": "ops",
    }
    (listed,) = api.get("/mcp", params={"agent": "gofer"}).json()["servers"]
    assert (listed["name"], listed["where"], listed["tier"]) == ("ops", wish["url"], "read")
    tried = api.post("/agents/gofer/mcp/ops/test", json={}).json()
    assert (tried["ok"], tried["tools"][0]["title"], tried["tools"][0]["tier"]) == (
        True,
        "mcp__ops__good",
        "write",
    )
    assert "recursive" in tried["left_out"]
    toml = api.get("/agents/gofer").json()["toml"]
    assert "[mcp.ops]" in toml
    assert (
        api.put("/agents/gofer/mcp/ops", json={"settings": {"url": f"{scene.url}/plain"}}).status_code == 200
    )
    assert api.get("/agents/gofer").json()["toml"].count("[mcp.ops]") == 1
    assert api.delete("/agents/gofer/mcp/ops").status_code == 200
    assert api.get("/mcp").json()["servers"] == []
    assert api.delete("/agents/gofer/mcp/ops").status_code == 404


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either a command or a url"),
        ({"url": "https://x.example", "command": "x"}, "either a command or a url"),
        ({"url": "ftp://x.example"}, "https://"),
        ({"url": "https://me:pw@x.example"}, "bearer"),
        ({"url": "https://x.example", "hosts": ["a"]}, "for a command"),
        ({"command": "x", "bearer": "a"}, "for a url"),
        ({"command": "x", "secrets": {"A B": "a"}}, "variable"),
        ({"url": "https://x.example", "headers": {"Host": "y"}}, "not yours"),
        ({"url": "https://x.example", "tier": "harmless"}, "tier"),
        ({"url": "https://x.example", "timeout": 0}, "timeout"),
        ({"url": "https://x.example", "colour": "red"}, "colour"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_to_change(
    scene: Scene, settings: dict[str, Any], says: str
) -> None:
    answer = scene.api.put("/agents/gofer/mcp/ops", json={"settings": settings})
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


def test_unknown_agents_and_names_are_refused(scene: Scene) -> None:
    wish = {"settings": {"url": "https://x.example"}}
    assert scene.api.put("/agents/nobody/mcp/ops", json=wish).status_code == 404
    assert scene.api.put("/agents/gofer/mcp/Not_A_Name", json=wish).status_code == 422
    assert scene.api.post("/agents/gofer/mcp/nothing/test", json={}).status_code == 404
    viewer = scene.house.api(scene.house.token(scene.house.owner(), "read"))
    assert viewer.post("/agents/gofer/mcp/nothing/test", json={}).status_code == 403


def test_the_doctor_names_a_missing_secret_and_the_page_has_a_test_button(scene: Scene) -> None:
    wish = {"url": f"{scene.url}/plain", "bearer": "no_such_key"}
    scene.api.put("/agents/gofer/mcp/ops", json={"settings": wish})
    found = [each for each in scene.house.run(examine(scene.house.platform)) if each.check.startswith("MCP")]
    assert [each.fix for each in found] == ["gofer secrets put no_such_key"]
    browser = scene.house.browser()
    browser.follow(scene.house.link(scene.house.owner()))
    page = browser.get("/agents/gofer").text
    assert "/agents/gofer/mcp/ops/test" in page
    tried = browser.post("/agents/gofer/mcp/ops/test", csrf=csrf_in(page))
    assert "no_such_key" in browser.get(tried.headers["location"]).text
    scene.api.put("/secrets", json={"name": "no_such_key", "value": "now there is one"})
    tried = browser.post("/agents/gofer/mcp/ops/test", csrf=csrf_in(page))
    assert "works and offers 2 tools" in browser.get(tried.headers["location"]).text
    scene.api.delete("/agents/gofer/mcp/ops")
