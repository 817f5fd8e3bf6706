"""MCP servers of agents as people manage them: by the API, the command line's words, the page, and OAuth's link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from gofer.doctor import examine
from gofer_standins.loopback import serve
from support.async_bridge import Elsewhere
from support.hostile_mcp import Hostile
from support.web_server import House, cheap_passwords, csrf_in


@dataclass
class Guarded:
    """An MCP server that wants OAuth, and its authorisation server, in one."""

    inner: Hostile = field(default_factory=Hostile)
    url: str = ""
    life: int = 3600
    grants: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/plain", self._mcp, methods=["GET", "POST", "DELETE"]),
                Route("/.well-known/oauth-protected-resource{rest:path}", self._resource),
                Route("/.well-known/oauth-authorization-server{rest:path}", self._server),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorise),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _mcp(self, request: Request) -> Response:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            where = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource"'
            return JSONResponse({"error": "unauthorised"}, 401, {"www-authenticate": where})
        request.scope["path_params"] = {"kind": "plain"}
        return await self.inner._answer(request)

    async def _resource(self, request: Request) -> Response:
        return JSONResponse({"resource": f"{self.url}/plain", "authorization_servers": [self.url]})

    async def _server(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

    async def _register(self, request: Request) -> Response:
        return JSONResponse({**await request.json(), "client_id": "client-1"}, 201)

    async def _authorise(self, request: Request) -> Response:
        asked = request.query_params
        back = urlencode({"code": "code-1", "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}")

    async def _token(self, request: Request) -> Response:
        given = parse_qs((await request.body()).decode())
        self.grants.append(given["grant_type"][0])
        token = f"access-token-{len(self.grants)}"
        self.valid = {token}
        return JSONResponse(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": self.life,
                "refresh_token": "refresh-token-1",
            }
        )


@dataclass
class Scene:
    house: House
    api: httpx2.Client
    guarded: Guarded
    url: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    loop, guarded, plain = Elsewhere(), Guarded(), Hostile()
    serving = [serve(guarded.app), serve(plain.app)]
    guarded.url, url = (loop.run(each.__aenter__()) for each in serving)
    with cheap_passwords():
        house = House(folder)
        yield Scene(house, house.api(house.token(house.owner())), guarded, url)
        house.close()
    for each in serving:
        loop.run(each.__aexit__(None, None, None))
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


def test_an_owner_authorises_once_and_tokens_are_kept_and_renewed(scene: Scene) -> None:
    api, guarded = scene.api, scene.guarded
    wish = {"url": f"{guarded.url}/plain", "oauth": True}
    api.put("/agents/gofer/mcp/guarded", json={"settings": wish})
    before = api.post("/agents/gofer/mcp/guarded/test", json={}).json()
    assert "gofer mcp authorise" in before["problem"]
    guarded.life = 31
    link = api.post("/agents/gofer/mcp/guarded/authorise", json={}).json()["url"]
    assert parse_qs(urlsplit(link).query)["code_challenge_method"] == ["S256"]
    back = httpx2.get(link).headers["location"]
    assert back.startswith(f"{scene.house.url}/mcp/callback?")
    stranger = scene.house.browser()
    assert stranger.get(back).headers["location"].startswith("/login")
    browser = scene.house.browser()
    browser.follow(scene.house.link(scene.house.owner()))
    assert browser.get(back).headers["location"] == "/agents"
    assert browser.get(back).status_code == 404, "a link works once"
    assert api.post("/agents/gofer/mcp/guarded/test", json={}).json()["ok"]
    assert guarded.grants == ["authorization_code"]
    names = [each["name"] for each in api.get("/secrets").json()["secrets"]]
    assert len([name for name in names if name.startswith("mcp_guarded_")]) == 3
    time.sleep(1.5)  # until half a minute before its end, from which it is renewed
    assert api.post("/agents/gofer/mcp/guarded/test", json={}).json()["ok"]
    assert guarded.grants == ["authorization_code", "refresh_token"]
    assert "access-token-2" not in api.get("/agents/gofer").text
