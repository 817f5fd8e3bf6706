"""Signing in and out: by password, by link, and every way it must not work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, select, true, update

from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import api_tokens, members, sign_in_delays, sign_in_links, web_sessions
from gofer.web.auth import login_throttle, passwords
from gofer.web.auth.sessions import csrf_for
from support.web_server import PASSWORD, Browser, House

ME = "/api/v1/me"


@pytest.fixture(autouse=True)
def no_delays(house: House) -> None:
    """What one test did wrong must not hold up the next."""
    house.write(lambda connection: connection.execute(sign_in_delays.delete()))


@pytest.fixture(scope="module")
def ada(house: House) -> str:
    return house.member("ada", "operator")


@pytest.fixture
def browser(house: House, ada: str) -> Browser:
    """One in which Ada is signed in."""
    browser = house.browser()
    assert browser.login("ada").status_code == 303
    return browser


def change(browser: Browser, **headers: str) -> httpx2.Response:
    """A change that would work, but for what is being tested."""
    return browser.client.post("/api/v1/jobs/987654321/cancel", headers=headers)


# Links.


def test_a_link_signs_in_once_and_sets_a_password(house: House) -> None:
    member = house.member("linda", "operator", password="")
    link = house.link(member)
    browser = house.browser()
    assert "Welcome, linda" in browser.get(f"/link/{link}").text
    done = browser.follow(link, name="linda", password=PASSWORD, again=PASSWORD)
    assert (done.status_code, done.headers["location"]) == (303, "/welcome")
    assert browser.get(ME).json()["name"] == "linda"
    assert house.browser().follow(link).status_code == 410
    assert house.browser().get(f"/link/{link}").status_code == 410
    assert house.browser().login("linda").status_code == 303


def test_looking_at_a_link_does_not_use_it_up(house: House, ada: str) -> None:
    link = house.link(ada)
    for _ in range(3):
        assert house.browser().get(f"/link/{link}").status_code == 200
    browser = house.browser()
    assert browser.follow(link).status_code == 303
    assert browser.get(ME).json()["name"] == "ada"


def test_a_link_followed_many_times_at_once_signs_in_once(house: House, ada: str) -> None:
    link = house.link(ada)
    browsers = [house.browser() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: each.follow(link).status_code, browsers))
    assert sorted(answers) == [303] + [410] * 7


def test_an_old_link_is_as_good_as_none(house: House, ada: str) -> None:
    link = house.link(ada)
    house.write(lambda c: row_macs.update(c, sign_in_links, true(), {"expires_at": now() - 1}))
    assert house.browser().follow(link).status_code == 410
    assert house.browser().follow("no-such-link").status_code == 410


def test_a_password_that_will_not_do_leaves_the_link_unused(house: House, ada: str) -> None:
    link = house.link(ada)
    browser = house.browser()
    assert browser.follow(link, password="short", again="short").status_code == 400
    assert browser.follow(link, password=PASSWORD, again="another password").status_code == 400
    assert browser.follow(link, name="not a name!", password=PASSWORD, again=PASSWORD).status_code == 400
    assert browser.follow(link).status_code == 303


def test_no_value_that_signs_in_is_stored(house: House, browser: Browser, ada: str) -> None:
    link, token = house.link(ada), house.token(ada)
    stored = Path(house.settings.data_dir, "gofer.db").read_bytes()
    stored += Path(house.settings.data_dir, "gofer.db-wal").read_bytes()
    for value in (link, token, browser.cookie, PASSWORD):
        assert value.encode() not in stored


# Passwords.


async def test_a_stored_password_costs_whoever_guesses(
    real_cost: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in real_cost.items():
        monkeypatch.setattr(passwords, name, value)
    cost = "$argon2id$v=19$m=32768,t=2,p=1$"
    stored = await passwords.Passwords().hashed(PASSWORD)
    assert stored.startswith(cost)
    assert passwords.NOBODY.startswith(cost), "a name that is unknown takes as long"
    assert await passwords.Passwords().fits(PASSWORD, stored)
    assert not await passwords.Passwords().fits(PASSWORD, "")


def test_a_wrong_password_and_a_wrong_name_look_the_same(house: House, ada: str) -> None:
    wrong = house.browser().login("ada", "wrong password")
    unknown = house.browser().login("nobody", "wrong password")
    assert wrong.status_code == unknown.status_code == 403
    assert wrong.text.replace("ada", "?") == unknown.text.replace("nobody", "?")
    assert "set-cookie" not in wrong.headers


def test_bad_passwords_are_answered_slower_and_slower(house: House, ada: str) -> None:
    browser = house.browser()
    for _ in range(login_throttle.FREE + 1):
        assert browser.login("ada", "wrong password").status_code == 403
    held_up = browser.login("ada", PASSWORD)
    assert held_up.status_code == 429
    assert int(held_up.headers["retry-after"]) >= 1
    # Another browser that nobody signed in with before is held up, too: it comes from the same address.
    assert house.browser().login("ada").status_code == 429
    first = house.read(_longest_wait)
    house.write(lambda c: c.execute(update(sign_in_delays).values(until=0)))
    assert browser.login("ada", "wrong password").status_code == 403
    assert house.read(_longest_wait) > first
    house.write(lambda c: c.execute(update(sign_in_delays).values(until=0)))
    assert browser.login("ada").status_code == 303
    assert house.read(_longest_wait) == 0


def _longest_wait(connection: Connection) -> float:
    query = select(sign_in_delays.c.until - sign_in_delays.c.failed_at)
    return max(map(float, connection.execute(query).scalars()), default=0.0)


def test_guesses_sent_all_at_once_count_one_by_one(house: House, ada: str) -> None:
    browsers = [house.browser() for _ in range(12)]
    begun = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda each: each.login("ada", "wrong password").status_code, browsers))
    # On a machine so slow that a delay has passed meanwhile, a guess more is rightly heard.
    assert answers.count(403) <= login_throttle.FREE + 1 + int(time.monotonic() - begun)
    assert set(answers) == {403, 429}


def test_a_delay_outlives_the_process(house: House, ada: str) -> None:
    for _ in range(login_throttle.FREE + 1):
        house.browser().login("ada", "wrong password")
    with pytest.raises(Exception, match="Too many wrong tries"):
        house.write(login_throttle.attempt, name="somebody", address="127.0.0.1")


def test_a_forwarded_address_is_believed_from_nobody_by_default(house: House) -> None:
    """Else each guess would come from another address."""
    for number in range(login_throttle.FREE + 1):
        browser = house.browser(**{"x-forwarded-for": f"198.51.100.{number}"})
        assert browser.login(f"nobody{number}", "wrong password").status_code == 403
    browser = house.browser(**{"x-forwarded-for": "198.51.100.99"})
    assert browser.login("nobody99", "wrong password").status_code == 429


def test_strange_names_and_passwords_are_just_wrong(house: House) -> None:
    for name, password in (
        ("\x00", "x"),
        ("a" * 9000, "x"),
        ("ada", "p" * 5000),
        ("' OR 1=1 --", "x"),
        ("", ""),
    ):
        assert house.browser().login(name, password).status_code == 403


def test_a_huge_form_is_not_read(house: House) -> None:
    assert house.browser().login("ada", "p" * 100_000).status_code == 413


def test_a_new_password_ends_other_sessions(house: House) -> None:
    house.member("carol", "viewer")
    here, elsewhere = house.browser(), house.browser()
    for each in (here, elsewhere):
        each.login("carol")
    token = {"x-gofer-csrf": csrf_for(here.cookie)}
    wish = {"current": PASSWORD, "password": "another good password"}
    wrong = here.client.put("/api/v1/me/password", json={**wish, "current": "guess"}, headers=token)
    assert wrong.status_code == 409
    assert here.client.put("/api/v1/me/password", json=wish, headers=token).status_code == 200
    assert here.get(ME).status_code == 200
    assert elsewhere.get(ME).status_code == 401


# Sessions.


def test_the_session_changes_at_login_and_dies_at_logout(house: House, browser: Browser) -> None:
    first = browser.cookie
    browser.login("ada")
    second = browser.cookie
    assert second != first
    assert _with_cookie(house, first).status_code == 401
    assert browser.post("/logout", csrf=csrf_for(second)).status_code == 303
    assert _with_cookie(house, second).status_code == 401


def test_a_session_chosen_by_somebody_else_is_not_taken_over(house: House, ada: str) -> None:
    browser = house.browser()
    browser.client.cookies.set("gofer_session", "chosen-by-an-attacker", domain="127.0.0.1")
    browser.login("ada")
    assert _with_cookie(house, "chosen-by-an-attacker").status_code == 401


@pytest.mark.parametrize(
    "cookie", ["", "x", "a" * 43, "a" * 5000, "\xe4\xf6", "%00", '"quoted"', "' OR 1=1 --", "\U0001f600"]
)
def test_a_forged_cookie_is_nobody(house: House, cookie: str) -> None:
    assert _with_cookie(house, cookie).status_code == 401


def test_two_cookies_of_one_name_are_nobody(house: House, browser: Browser) -> None:
    both = {"cookie": f"gofer_session={browser.cookie}; gofer_session=another"}
    assert httpx2.get(house.url + ME, headers=both).status_code == 401


def _with_cookie(house: House, value: str) -> httpx2.Response:
    header = b"gofer_session=" + value.encode()
    return httpx2.get(house.url + ME, headers=[(b"cookie", header)])


def test_an_idle_session_ends(house: House, browser: Browser) -> None:
    house.write(lambda c: c.execute(update(web_sessions).values(seen_at=now() - 8 * 86400)))
    assert browser.get(ME).status_code == 401


def test_a_removed_member_is_out_at_once(house: House) -> None:
    member = house.member("dave", "owner")
    browser = house.browser()
    browser.login("dave")
    api = house.api(house.token(member))
    house.write(lambda c: c.execute(members.delete().where(members.c.id == member)))
    assert browser.get(ME).status_code == 401
    assert api.get("/me").status_code == 401


def test_a_lowered_role_holds_from_the_next_request(house: House) -> None:
    member = house.member("erin", "owner")
    api = house.api(house.token(member, "admin"))
    assert api.get("/audit").status_code == 200
    house.write(lambda c: row_macs.update(c, members, members.c.id == member, {"role": "viewer"}))
    assert api.get("/audit").status_code == 403


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites(house: House, ada: str) -> None:
    cookie = house.browser().login("ada").headers["set-cookie"]
    for flag in ("HttpOnly", "SameSite=lax", "Path=/"):
        assert flag in cookie
    assert "Secure" not in cookie  # over plain http a browser would drop it


def test_where_to_go_next_is_on_this_server(house: House, ada: str) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "x", "\n/"):
        answer = house.browser().post("/login", name="ada", password=PASSWORD, next=target)
        assert answer.headers["location"] == "/"
    answer = house.browser().post("/login", name="ada", password=PASSWORD, next="/runs?state=dead")
    assert answer.headers["location"] == "/runs?state=dead"


# Changes by a session.


def test_a_change_needs_the_sessions_own_token_and_origin(house: House, browser: Browser) -> None:
    good = csrf_for(browser.cookie)
    assert change(browser, **{"x-gofer-csrf": good}).status_code == 404  # as far as it goes: no such job
    assert change(browser).status_code == 403
    assert change(browser, **{"x-gofer-csrf": "0" * 64}).status_code == 403
    for origin in ("https://evil.example", "null", house.url + ".evil.example", "http://127.0.0.1:1"):
        assert change(browser, **{"x-gofer-csrf": good, "origin": origin}).status_code == 403
    del browser.client.headers["origin"]
    assert change(browser, **{"x-gofer-csrf": good}).status_code == 403


def test_a_token_of_an_ended_session_is_stale(house: House, browser: Browser) -> None:
    stale = csrf_for(browser.cookie)
    browser.login("ada")
    assert change(browser, **{"x-gofer-csrf": stale}).status_code == 403


def test_another_sites_page_cannot_sign_somebody_in_or_out(house: House, browser: Browser) -> None:
    browser.client.headers["origin"] = "https://evil.example"
    assert browser.login("ada").status_code == 403
    assert browser.post("/logout", csrf=csrf_for(browser.cookie)).status_code == 403
    assert browser.follow("any").status_code == 403
    assert browser.get(ME).status_code == 200


def test_a_name_that_was_bent_to_our_address_is_not_served(house: House, browser: Browser) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80", "[::1"):
        answer = browser.get(ME, headers={"host": host})
        assert answer.status_code in (400, 421), host
    for host in ("localhost:1", "127.0.0.1", "[::1]:8765"):
        assert browser.get("/login", headers={"host": host}).status_code in (200, 303)
    assert browser.get("/healthz", headers={"host": "evil.example"}).status_code == 200


# Tokens.


def test_a_token_that_has_ended_is_nobody(house: House, ada: str) -> None:
    token = house.token(ada, "write", life=60.0)
    api = house.api(token)
    who = {
        "member_id": ada,
        "name": "ada",
        "role": "operator",
        "via": "token",
        "scopes": None,
        "agent": "",
    }
    assert api.get("/me").json() == who
    house.write(lambda c: row_macs.update(c, api_tokens, true(), {"expires_at": now() - 1}))
    answer = api.get("/me")
    assert answer.status_code == 401
    assert "Bearer" in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x", "Basic YWRhOng=", "Bearer \xff", "Bearer " + "a" * 999]
)
def test_a_forged_token_is_nobody(house: House, header: str) -> None:
    answer = httpx2.get(house.url + ME, headers=[(b"authorization", header.encode("latin-1"))])
    assert answer.status_code == 401


def test_a_wrong_token_is_not_made_good_by_a_cookie(house: House, browser: Browser) -> None:
    assert browser.get(ME, headers={"authorization": "Bearer gofer_wrong"}).status_code == 401


def test_a_form_without_end_is_not_read(house: House, browser: Browser) -> None:
    """Also of somebody who is signed in."""

    def endless() -> Iterator[bytes]:
        yield b"csrf="
        for _ in range(40):
            yield b"x" * 1_000_000

    form = {"content-type": "application/x-www-form-urlencoded"}
    assert browser.client.post("/api/v1/jobs/1/cancel", content=endless(), headers=form).status_code == 413


# What every answer says.


def test_every_answer_tells_the_browser_what_not_to_do(house: House, browser: Browser) -> None:
    for path in ("/login", ME, "/nowhere", "/api/v1/nowhere", "/api/v1/docs", "/healthz"):
        headers = browser.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"


def test_nothing_typed_comes_back_as_markup(house: House) -> None:
    nasty = "<script>alert(1)</script>\"'"
    page = house.browser().post("/login", name=nasty, password="x", next=f"/{nasty}").text
    assert "<script" not in page


def test_a_websocket_from_another_sites_page_is_refused(house: House, browser: Browser) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    async def shake(origin: str | None) -> int:
        url = house.url.replace("http", "ws") + "/nowhere"
        cookie = {"cookie": f"gofer_session={browser.cookie}"}
        try:
            async with connect(url, origin=origin, additional_headers=cookie):  # type: ignore[arg-type]
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    assert asyncio.run(shake("https://evil.example")) == 403
    assert asyncio.run(shake(None)) == 403


def test_the_log_has_no_link_and_no_token(house: House, ada: str, capfd: pytest.CaptureFixture[str]) -> None:
    link, token = house.link(ada), house.token(ada)
    house.browser().get(f"/link/{link}")
    house.api(token).get("/me")
    shown = "".join(capfd.readouterr())
    assert link not in shown
    assert token not in shown


def test_the_audit_log_says_who_changed_what(house: House, browser: Browser, ada: str) -> None:
    change(browser, **{"x-gofer-csrf": csrf_for(browser.cookie)})
    api = house.api(house.token(house.owner()))
    wish = {"name": "frank", "role": "viewer", "password": "a password of frank's"}
    made = api.post("/members", json=wish)
    assert made.status_code == 201
    newest, before, came_in = api.get("/audit", params={"limit": 3}).json()["entries"]
    assert (came_in["action"], came_in["name"], came_in["data"]) == (
        "session.begin",
        "ada",
        {"by": "password"},
    )
    assert (newest["action"], newest["via"], newest["status"]) == ("members.add", "token", 201)
    assert newest["data"] == {"name": "frank", "role": "viewer"}
    assert (before["name"], before["action"], before["subject"]) == ("ada", "jobs.cancel", "987654321")
    assert (before["status"], before["address"], before["member_id"]) == (404, "127.0.0.1", ada)
    assert "a password" not in json.dumps(api.get("/audit").json())
