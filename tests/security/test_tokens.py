"""A token that leaks: it ends by itself, does little, and ends with its owner's password."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gofer.doctor import examine
from gofer.store.tables import api_tokens
from gofer.web.api.table import OPERATIONS
from gofer.web.auth.principal import ANYBODY, NOUNS
from gofer.web.auth.sessions import csrf_for
from support.web_server import PASSWORD, House

DAY = 86400


@pytest.fixture
def admin(house: House) -> Any:
    return house.api(house.token(house.owner(), "admin"))


def test_a_new_token_ends_after_90_days_unless_asked_otherwise(house: House, admin: Any) -> None:
    def days(**wish: Any) -> int | None:
        ends = admin.post("/tokens", json={"name": "ci", **wish}).json()["expires_at"]
        return None if ends is None else round((ends - time.time()) / DAY)

    assert days() == 90
    assert days(days=7) == 7
    assert days(days=None) is None


def test_the_doctor_warns_of_tokens_without_end_and_they_keep_their_term(house: House, admin: Any) -> None:
    house.write(lambda connection: connection.execute(api_tokens.delete()))
    endless = house.token(house.owner(), "read", life=None)
    assert house.api(endless).get("/me").status_code == 200
    (found,) = [each for each in house.run(examine(house.platform)) if each.check == "tokens"]
    assert found.severity == "warning"
    assert "without end" in found.line


def test_a_token_with_scopes_reaches_its_nouns_and_nothing_else(house: House, admin: Any) -> None:
    made = admin.post("/tokens", json={"name": "board", "scopes": ["jobs:write", "costs:read"]})
    assert made.json()["scopes"] == ["costs:read", "jobs:write"]
    board = house.api(made.json()["token"])
    assert board.get("/jobs").status_code == board.get("/costs").status_code == 200
    assert board.post("/jobs/987654321/cancel").status_code == 404, "a write to jobs passes"
    assert board.get("/me").json()["scopes"] == {"jobs": "operator", "costs": "viewer"}
    for path in ("/agents", "/secrets", "/conversations", "/tokens", "/events", "/audit"):
        refused = board.get(path)
        assert refused.status_code == 403, path
        assert "costs, jobs" in refused.json()["detail"]
    assert board.get(f"{house.url}/runs").status_code == 403, "pages are not for it"
    assert board.get(f"{house.url}/chat").status_code == 403


def test_a_scope_is_never_more_than_the_level_says(house: House, admin: Any) -> None:
    made = admin.post("/tokens", json={"name": "reader", "scopes": ["secrets:write", "jobs:read"]}).json()
    reader = house.api(made["token"])
    assert reader.get("/secrets").status_code == 200
    put = reader.put("/secrets", json={"name": "x", "value": "y" * 20})
    assert put.status_code == 403
    assert reader.post("/jobs/1/cancel").status_code == 403


@pytest.mark.parametrize("word", ["jobs", "jobs:all", "tokens:admin", "me:read", "nothing:read", ""])
def test_a_scope_that_does_not_exist_is_refused_with_those_that_do(admin: Any, word: str) -> None:
    answer = admin.post("/tokens", json={"name": "x", "scopes": [word]})
    assert answer.status_code == 400
    assert "jobs" in answer.json()["detail"]


def test_nobody_gives_a_token_more_than_its_member_may(house: House, admin: Any) -> None:
    house.member("vera", "viewer")
    wish = {"name": "x", "member": "vera", "scopes": ["jobs:read", "agents:admin"]}
    assert admin.post("/tokens", json=wish).status_code == 403


def test_only_an_owner_has_a_token_that_is_bound_to_an_agent(house: House) -> None:
    member = house.member("oona", "operator")
    browser = house.browser()
    browser.login("oona")
    csrf = {"x-gofer-csrf": csrf_for(browser.cookie)}
    wish = {"name": "mine", "scope": "read", "agent": "gofer"}
    answer = browser.client.post("/api/v1/tokens", json=wish, headers=csrf)
    assert answer.status_code == 403
    assert "Only an owner" in answer.json()["detail"]
    # One that was made before, or whose owner is an owner no more, opens nothing.
    assert house.api(house.token(member, "read", agent="gofer")).get("/conversations").status_code == 401
    assert (
        house.api(house.token(house.owner(), "read", agent="gofer")).get("/conversations").status_code == 200
    )


def test_every_noun_of_the_api_has_scopes() -> None:
    # Tokens and devices are ways in: only a token that may do everything manages them.
    assert {each.noun for each in OPERATIONS} == {*NOUNS, ANYBODY, "tokens", "devices"}


def test_another_password_ends_tokens_unless_asked_not_to(house: House) -> None:
    member = house.member("tina", "operator")
    browser = house.browser()
    browser.login("tina")
    csrf = {"x-gofer-csrf": csrf_for(browser.cookie)}
    kept, lost = (house.api(house.token(member, "read")) for _ in range(2))

    def change(current: str, password: str, **more: Any) -> int:
        wish = {"current": current, "password": password, **more}
        return browser.client.put("/api/v1/me/password", json=wish, headers=csrf).status_code

    assert change(PASSWORD, "another good password", keep_tokens=True) == 200
    assert kept.get("/me").status_code == 200
    assert change("another good password", PASSWORD) == 200
    assert lost.get("/me").status_code == kept.get("/me").status_code == 401


def test_a_first_password_ends_no_token(house: House) -> None:
    member = house.member("newt", "viewer", password="")
    api = house.api(house.token(member, "read"))
    house.browser().follow(house.link(member), name="newt", password=PASSWORD, again=PASSWORD)
    assert api.get("/me").status_code == 200
