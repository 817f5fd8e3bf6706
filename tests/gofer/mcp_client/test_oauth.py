"""OAuth at MCP servers: an owner follows a link once, and whichever process they come back to finishes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from sqlalchemy import Connection, update

from gofer.mcp.oauth import LINK_LIFE, NotAuthorised
from gofer.mcp.settings import McpServerSettings
from gofer.secrets.secret_store import PLATFORM
from gofer.store.tables import secrets
from gofer.tool import ToolContext
from gofer_standins.loopback import serve
from support.async_bridge import Elsewhere
from support.guarded_mcp import Guarded
from support.web_server import Browser, House, cheap_passwords

TEST = "/agents/gofer/mcp/guarded/test"
AUTHORISE = "/agents/gofer/mcp/guarded/authorise"


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    loop, guarded = Elsewhere(), Guarded()
    serving = serve(guarded.app)
    guarded.url = loop.run(serving.__aenter__())
    yield guarded
    loop.run(serving.__aexit__(None, None, None))
    loop.close()


@pytest.fixture
def begin(guarded: Guarded, data_dir: Path, database_url: str) -> Iterator[Callable[..., House]]:
    """Starts processes of one instance whose agent uses the server."""
    (data_dir / "agents").mkdir(mode=0o700)
    server = f'[mcp.guarded]\nurl = "{guarded.url}/plain"\noauth = true\n'
    (data_dir / "agents" / "gofer.toml").write_text(server)
    houses: list[House] = []

    def start(*, restarted: bool = False) -> House:
        if restarted:
            houses.pop().close()
        houses.append(House(data_dir, database_url=database_url))
        return houses[-1]

    with cheap_passwords():
        yield start
        for house in houses:
            house.close()


def api_of(house: House) -> httpx2.Client:
    return house.api(house.token(house.owner()))


def signed_in(house: House) -> Browser:
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    return browser


def followed(link: str) -> str:
    """The path to which the server sends a browser back that followed a link."""
    parts = urlsplit(httpx2.get(link).headers["location"])
    return f"{parts.path}?{parts.query}"


def link_of(house: House) -> str:
    return str(api_of(house).post(AUTHORISE, json={}).json()["url"])


def test_an_owner_authorises_once_and_tokens_are_kept_and_renewed(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    house = begin()
    api = api_of(house)
    assert "gofer mcp authorise" in api.post(TEST, json={}).json()["problem"]
    guarded.life = 30  # it is renewed from half a minute before its end on
    link = link_of(house)
    asked = parse_qs(urlsplit(link).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{house.url}/mcp/callback"]
    back = followed(link)
    assert house.browser().get(back).headers["location"].startswith("/login")
    browser = signed_in(house)
    assert browser.get(back).headers["location"] == "/agents"
    assert browser.get(back).status_code == 404, "a link works once"
    assert guarded.grants == ["authorization_code"]
    names = [each["name"] for each in api.get("/secrets").json()["secrets"]]
    assert len([name for name in names if name.startswith("mcp_guarded_")]) == 3
    assert not [name for name in names if "pending" in name]
    guarded.life = 3600
    for _ in range(2):
        assert api.post(TEST, json={}).json()["ok"]
        assert guarded.grants == ["authorization_code", "refresh_token"]
    assert "access-token-2" not in api.get("/agents/gofer").text


def test_runs_that_begin_at_once_renew_a_token_once(begin: Callable[..., House], guarded: Guarded) -> None:
    guarded.life = 30
    house = begin()
    assert signed_in(house).get(followed(link_of(house))).headers["location"] == "/agents"
    guarded.life = 3600
    with ThreadPoolExecutor(4) as pool:
        tried = list(
            pool.map(lambda api: api.post(TEST, json={}).json()["ok"], [api_of(house) for _ in range(4)])
        )
    assert tried == [True] * 4
    assert guarded.grants == ["authorization_code", "refresh_token"]


def test_what_was_begun_before_a_restart_is_finished_after_it(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    back = followed(link_of(begin()))
    second = begin(restarted=True)
    assert signed_in(second).get(back).headers["location"] == "/agents"
    assert api_of(second).post(TEST, json={}).json()["ok"]
    assert guarded.grants == ["authorization_code"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_one_of_two_processes_finishes_what_either_began(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    one, other = begin(), begin()
    back = followed(link_of(one))
    browsers = [signed_in(house) for house in (one, other, one, other)]
    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(lambda browser: browser.get(back).status_code, browsers))
    assert answers == [303, 404, 404, 404]
    assert guarded.grants == ["authorization_code"]
    assert all(api_of(house).post(TEST, json={}).json()["ok"] for house in (one, other))


def test_a_link_that_is_too_old_or_was_never_given_leads_nowhere(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    house = begin()
    back = followed(link_of(house))

    def age(connection: Connection) -> None:
        pending = secrets.c.owner == PLATFORM, secrets.c.name.startswith("mcp_pending_")
        connection.execute(
            update(secrets).where(*pending).values(created_at=secrets.c.created_at - LINK_LIFE)
        )

    house.write(age)
    browser = signed_in(house)
    assert browser.get(back).status_code == 404
    assert browser.get("/mcp/callback?state=made-up&code=x").status_code == 404
    assert browser.get("/mcp/callback").status_code == 404
    assert browser.get("/mcp/callback?error=access_denied&state=x").status_code == 400
    assert guarded.grants == []


def change_place(guarded: Guarded) -> None:
    guarded.token_path = "/thief"


def name_another(guarded: Guarded) -> None:
    guarded.issuer = "https://evil.example"


@pytest.mark.parametrize("attack", [change_place, name_another])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_code_goes_nowhere_else_than_to_whom_the_owner_was_sent(
    begin: Callable[..., House], guarded: Guarded, attack: Any
) -> None:
    house = begin()
    link = link_of(house)
    attack(guarded)
    refused = signed_in(house).get(followed(link))
    assert refused.status_code >= 400
    assert "Traceback" not in refused.text
    assert (guarded.grants, guarded.stolen) == ([], [])
    assert not api_of(house).post(TEST, json={}).json()["ok"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_server_cannot_send_us_to_an_address_of_this_network(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    guarded.tokens_at = guarded.url.replace("127.0.0.1", "localhost")
    refused = api_of(begin()).post(AUTHORISE, json={})
    assert refused.status_code == 502
    assert "not a public address" in refused.json()["detail"]
    assert guarded.asked_for_metadata == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_client_that_was_registered_by_hand_is_used_with_its_secret(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    house = begin()
    api, guarded.by_hand = api_of(house), "gofer-1:hush-hush"
    assert api.post(AUTHORISE, json={}).status_code == 502
    wish = {"url": f"{guarded.url}/plain", "oauth": True, "client_id": "gofer-1", "client_secret": "hand"}
    assert api.put("/agents/gofer/mcp/guarded", json={"settings": wish}).status_code == 200
    assert "gofer secrets put hand" in api.post(TEST, json={}).json()["problem"]
    api.put("/secrets", json={"name": "hand", "value": "hush-hush"})
    guarded.life = 30
    assert signed_in(house).get(followed(link_of(house))).headers["location"] == "/agents"
    assert api.post(TEST, json={}).json()["ok"]
    assert guarded.grants == ["authorization_code", "refresh_token"]
    for wrong in ({"client_id": "x"}, {"oauth": True, "client_secret": "x"}):
        refused = api.put("/agents/gofer/mcp/bad", json={"settings": {"url": guarded.url, **wrong}})
        assert (refused.status_code, "client_id" in refused.json()["detail"]) == (422, True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_call_that_needs_more_than_was_granted_says_so_and_the_next_link_asks_for_it(
    begin: Callable[..., House], guarded: Guarded
) -> None:
    house, guarded.call_scope = begin(), "tickets:write"
    settings = McpServerSettings(url=f"{guarded.url}/plain", oauth=True)

    async def use() -> str:
        async with house.platform.servers.for_run({"guarded": settings}) as brought:
            tool = brought.tools[0]
            return (await tool.run(tool.arguments.model_validate({}), ToolContext("call_1"))).content

    browser = signed_in(house)
    browser.get(followed(link_of(house)))
    with pytest.raises(NotAuthorised, match="gofer mcp authorise"):
        house.run(use())
    assert guarded.inner.calls == []
    link = link_of(house)
    assert parse_qs(urlsplit(link).query)["scope"] == ["tickets:write"]
    browser.get(followed(link))
    assert "worked on" in house.run(use())
