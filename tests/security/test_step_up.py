"""A browser left open, or a stolen cookie: it must not make ways in that outlive it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import true

from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import sign_in_delays, web_sessions
from gofer.web.auth import login_throttle
from gofer.web.auth.sessions import CONFIRMED_FOR, csrf_for
from support.web_server import PASSWORD, Browser, House, csrf_in

MAKING = [
    ("POST", "/tokens", {"name": "x"}),
    ("POST", "/devices", {"name": "x", "public_key": "A" * 43}),
    ("POST", "/devices/x/pair", {}),
    ("POST", "/runtimes", {"name": "x", "agent": "gofer", "kind": "tmux"}),
    ("POST", "/members", {"name": "newcomer"}),
    ("PATCH", "/members/olga", {"role": "owner"}),
    ("POST", "/members/olga/link", {}),
    ("PUT", "/secrets", {"name": "x", "value": "a secret of some length"}),
    ("POST", "/key/rotate", {}),
    ("POST", "/connections", {"integration": "hello", "name": "x"}),
    ("PATCH", "/connections/x", {"settings": {"members": [666]}}),
    ("POST", "/connections/x/pair", {"role": "owner"}),
    ("POST", "/sign-ups", {"integration": "github", "name": "x"}),
]


@pytest.fixture(scope="module")
def olga(house: House) -> str:
    return house.member("olga", "owner")


@pytest.fixture
def old(house: House, olga: str) -> Browser:
    """A session that began a while ago."""
    browser = house.browser()
    assert browser.login("olga").status_code == 303
    ago = now() - CONFIRMED_FOR - 1
    house.write(lambda c: row_macs.update(c, web_sessions, true(), {"created_at": ago, "confirmed_at": None}))
    house.write(lambda c: c.execute(sign_in_delays.delete()))
    return browser


def ask(browser: Browser, method: str, path: str, body: Any = None) -> Any:
    headers = {"x-gofer-csrf": csrf_for(browser.cookie)}
    return browser.client.request(method, f"/api/v1{path}", json=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "body"), MAKING, ids=[path for _, path, _ in MAKING])
def test_an_old_session_makes_nothing_that_outlives_it(
    old: Browser, method: str, path: str, body: Any
) -> None:
    refused = ask(old, method, path, body)
    assert (refused.status_code, refused.json()["code"]) == (403, "unconfirmed")
    assert "/confirm" in refused.json()["detail"]


def test_what_makes_nothing_needs_no_confirmation(old: Browser) -> None:
    assert ask(old, "GET", "/tokens").status_code == 200
    assert ask(old, "POST", "/jobs/987654321/cancel").status_code == 404


def test_a_password_confirms_for_a_while(house: House, old: Browser) -> None:
    assert ask(old, "POST", "/me/confirm", {"password": "wrong password"}).status_code == 409
    assert ask(old, "POST", "/me/confirm", {"password": PASSWORD}).status_code == 200
    assert ask(old, "POST", "/tokens", {"name": "x"}).status_code == 201
    ago = now() - CONFIRMED_FOR - 1
    house.write(lambda c: row_macs.update(c, web_sessions, true(), {"confirmed_at": ago}))
    assert ask(old, "POST", "/tokens", {"name": "x"}).status_code == 403


def test_a_fresh_link_confirms(house: House, old: Browser, olga: str) -> None:
    assert old.follow(house.link(olga)).status_code == 303
    assert ask(old, "POST", "/tokens", {"name": "x"}).status_code == 201


def test_a_form_leads_to_the_question_and_back(old: Browser) -> None:
    page = old.get("/members").text
    assert "/confirm?next=/members" in page
    wish = {"csrf": csrf_in(page), "name": "robot", "scope": "read", "life": "30", "scopes": ""}
    headers = {"referer": f"{old.client.base_url}/members"}
    sent = old.client.post("/tokens", data=wish, headers=headers)
    assert (sent.status_code, sent.headers["location"]) == (303, "/confirm?next=%2Fmembers")
    asked = old.get(sent.headers["location"]).text
    assert "Is it you, olga?" in asked
    wrong = old.post("/confirm", csrf=csrf_in(asked), next="/members", password="wrong password")
    assert (wrong.status_code, "wrong" in wrong.text) == (409, True)
    right = old.post("/confirm", csrf=csrf_in(asked), next="//evil.example", password=PASSWORD)
    assert (right.status_code, right.headers["location"]) == (303, "/")
    assert "It is kept nowhere" in old.client.post("/tokens", data=wish, headers=headers).text
    assert "/confirm?next" not in old.get("/members").text


def test_guessing_at_the_question_is_throttled_and_holds_nobody_else_up(house: House, old: Browser) -> None:
    for _ in range(login_throttle.FREE + 1):
        ask(old, "POST", "/me/confirm", {"password": "wrong password"})
    assert ask(old, "POST", "/me/confirm", {"password": PASSWORD}).status_code == 429
    assert house.browser().login("olga").status_code == 303


def test_programs_and_the_command_line_are_not_asked(house: House, olga: str) -> None:
    assert house.api(house.token(olga)).post("/tokens", json={"name": "x"}).status_code == 201


def test_own_sessions_are_listed_and_can_be_ended(house: House) -> None:
    house.member("sam", "viewer")
    house.member("sue", "viewer")
    here, there, other = house.browser(), house.browser(), house.browser()
    for browser, name in ((here, "sam"), (there, "sam"), (other, "sue")):
        browser.login(name)
    found = ask(here, "GET", "/me/sessions").json()["sessions"]
    assert sorted(each["current"] for each in found) == [False, True]
    (elsewhere,) = [each["id"] for each in found if not each["current"]]
    sues = ask(other, "GET", "/me/sessions").json()["sessions"][0]["id"]
    assert ask(here, "DELETE", f"/me/sessions/{sues}").status_code == 404, "another's is not there for Sam"
    assert ask(here, "DELETE", f"/me/sessions/{elsewhere}").status_code == 200
    assert there.get("/api/v1/me").status_code == 401
    there.login("sam")
    assert ask(here, "DELETE", "/me/sessions").json() == {"ended": 1}
    assert there.get("/api/v1/me").status_code == 401
    assert here.get("/api/v1/me").status_code == other.get("/api/v1/me").status_code == 200


def test_sessions_end_from_the_page(house: House) -> None:
    here, there = house.browser(), house.browser()
    house.member("pat", "viewer")
    here.login("pat")
    there.login("pat")
    page = here.get("/members").text
    assert "this browser" in page
    ended = here.post("/sessions/end", csrf=csrf_in(page))
    assert ended.status_code == 303
    assert there.get("/api/v1/me").status_code == 401
