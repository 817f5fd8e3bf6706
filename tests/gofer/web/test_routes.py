"""Who may call what: every route is public by decision, or asks who is there, and each role gets what is its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import update
from starlette.routing import BaseRoute, Mount, Route

from gofer.app import Platform, open_app
from gofer.doctor import examine, look_around
from gofer.settings import Settings
from gofer.store.tables import master_keys
from gofer.web.api.table import OPERATIONS
from gofer.web.app import PUBLIC, public_app
from gofer.web.auth.principal import ROLES, Role, Scope
from gofer.web.auth.sessions import csrf_for
from support.web_server import House

SCOPE: dict[Role, Scope] = {"viewer": "read", "operator": "write", "owner": "admin"}


def walk(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every path and method, also below mounts."""
    for route in routes:
        if isinstance(route, Mount) and route.routes:
            yield from walk(list(route.routes), prefix + route.path)
        elif isinstance(route, Route):
            for method in route.methods or {"GET"}:
                yield prefix + route.path, method
        else:
            yield prefix + str(getattr(route, "path", route)), "GET"


def asked_for(path: str) -> str:
    """A path with something in the place of what it names."""
    return re.sub(r"\{\w+\}", "nobody", re.sub(r"\{\w+:int\}", "987654321", re.sub(r":path\}", "}", path)))


async def test_each_route_is_public_or_turns_a_stranger_away(platform: Platform) -> None:
    app = public_app(platform)
    transport = httpx2.ASGITransport(app, client=("192.0.2.7", 4321))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        walked = list(walk(app.routes))
        assert len(walked) >= len(PUBLIC) + len(OPERATIONS)
        for path, method in walked:
            if path in PUBLIC:
                continue
            response = await client.request(method, asked_for(path))
            if path.startswith(("/api/", "/v1/")) or path in ("/metrics", "/mcp", "/gateway"):
                assert response.status_code == 401, f"{method} {path} answered {response.status_code}"
                assert response.headers["www-authenticate"].startswith("Bearer")
            else:
                assert response.status_code == 303, f"{method} {path} answered {response.status_code}"
                assert response.headers["location"].startswith("/login")


@pytest.mark.parametrize(
    ("peer", "headers", "public_url", "status"),
    [
        ("127.0.0.1", {}, "", 200),
        ("::1", {}, "", 200),
        ("192.0.2.7", {}, "", 401),
        ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, "", 401),
        ("127.0.0.1", {"via": "1.1 proxy"}, "", 401),
        ("127.0.0.1", {}, "https://gofer.example.org", 401),
        ("127.0.0.1", {"host": "another-sites-name.example"}, "", 421),
    ],
)
async def test_metrics_are_for_programs_on_this_machine(
    data_dir: Path, peer: str, headers: dict[str, str], public_url: str, status: int
) -> None:
    async with open_app(Settings(data_dir=data_dir, public_url=public_url), roles=frozenset({"web"})) as here:
        transport = httpx2.ASGITransport(public_app(here), client=(peer, 4321))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == status
    assert ("gofer_jobs" in answer.text) is (status == 200)


def test_metrics_are_for_tokens_that_may_read_the_instance(house: House) -> None:
    member = house.member("prometheus", "viewer", password="")

    def ask(token: str) -> httpx2.Response:
        # Found by a name that only the monitoring knows, and through a proxy: so not as this machine.
        headers = {"authorization": f"Bearer {token}", "host": "gofer.monitoring.svc", "via": "1.1 proxy"}
        return httpx2.get(f"{house.url}/metrics", headers=headers)

    assert "gofer_jobs" in ask(house.token(member, "read")).text
    assert "gofer_jobs" in ask(house.token(member, scopes={"instance": "read"})).text
    assert ask(house.token(member, scopes={"jobs": "read"})).status_code == 403
    assert ask("gofer_invented").status_code == 401


async def test_a_server_whose_key_no_longer_opens_the_store_is_not_ready(platform: Platform) -> None:
    transport = httpx2.ASGITransport(public_app(platform))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/readyz")).json()["status"] == "ready"
        # As another process leaves it that rotated the key, while the new key file is not here yet.
        await platform.database.write(lambda c: c.execute(update(master_keys).values(id="00" * 8)))
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "The master key does not open the database."


async def test_the_doctor_asks_a_server_where_it_listens(data_dir: Path) -> None:
    given = Settings(data_dir=data_dir, host="192.0.2.1")  # as by gofer serve --host, beside other settings
    async with open_app(given, roles=frozenset({"web"})) as platform:
        found = [*look_around(Settings(data_dir=data_dir), serving=True), *await examine(platform)]
    (network,) = [each for each in found if each.check == "network"]
    assert (network.severity, "192.0.2.1" in network.line) == ("warning", True)


async def test_the_public_list_names_only_routes_that_exist(platform: Platform) -> None:
    paths = {path for path, _ in walk(public_app(platform).routes)}
    assert paths >= PUBLIC


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_do_what_is_its_own_and_nothing_else(house: House, role: Role) -> None:
    member = house.member(f"walker-{role}", role, password="")
    browser = house.browser()
    browser.follow(house.link(member))
    by_session = browser.client
    by_session.headers["x-gofer-csrf"] = csrf_for(browser.cookie)
    by_token = house.api(house.token(member, SCOPE[role]))
    for each in OPERATIONS:
        if each.stream:
            continue
        allowed = ROLES.index(role) >= ROLES.index(each.role)
        # A token for what is looked at, a session for what is changed: each is enough for both.
        if each.method == "GET":
            answer = by_token.get(asked_for(each.path))
        else:
            answer = by_session.request(each.method, f"/api/v1{asked_for(each.path)}")
        told = answer.json().get("detail", "")
        refused = answer.status_code == 403 and "needs the role" in told
        assert refused is not allowed, (each.name, answer.status_code, told)
        assert answer.status_code != 401
        assert answer.status_code < 500, (each.name, told)


def test_a_token_may_do_no_more_than_its_scope_whoever_made_it(house: House) -> None:
    api = house.api(house.token(house.owner(), "read"))
    assert api.get("/me").json()["role"] == "viewer"
    assert api.get("/jobs").status_code == 200
    for method, path in (
        ("POST", "/jobs/1/cancel"),
        ("GET", "/audit"),
        ("POST", "/members"),
        ("GET", "/key"),
    ):
        assert api.request(method, path).status_code == 403
    assert api.post("/tokens", json={"name": "more", "scope": "admin"}).status_code == 403


def test_the_audit_log_calls_each_change_by_a_name_that_says_what_it_was(house: House) -> None:
    changing = {
        route.name
        for route in house.app.routes
        if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}
    }
    bare = {name for name in changing if "." not in name}
    assert bare <= {"login", "logout", "follow_link", "Hooks"}, bare
