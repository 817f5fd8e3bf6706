"""Strangers who guess at passwords: they wait longer and longer, and nobody else waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gofer.store.tables import sign_in_delays
from gofer.web.auth import login_throttle
from support.web_server import PASSWORD, Browser, House, cheap_passwords


@pytest.fixture(scope="module")
def behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house whose visitors' addresses are told by a proxy that it trusts."""
    folder = tmp_path_factory.mktemp("proxied") / "data"
    folder.mkdir(mode=0o700)
    with cheap_passwords():
        house = House(folder, roles=("web",), trusted_proxies="127.0.0.1")
        house.member("ada", "owner")
        house.member("ben", "viewer")
        yield house
        house.close()


@pytest.fixture(autouse=True)
def no_delays(behind_proxy: House) -> None:
    behind_proxy.write(lambda connection: connection.execute(sign_in_delays.delete()))


def visitor(house: House, address: str) -> Browser:
    return house.browser(**{"x-forwarded-for": address})


def guess(house: House, address: str, times: int = 1, name: str = "ada") -> int:
    """The status of the last of some wrong tries."""
    browser = visitor(house, address)
    return [browser.login(name, "wrong password").status_code for _ in range(times)][-1]


def test_a_browser_that_signed_in_before_is_not_held_up_by_strangers(behind_proxy: House) -> None:
    """Not even by those of its own address."""
    known = visitor(behind_proxy, "192.0.2.1")
    assert known.login("ada").status_code == 303
    known.client.cookies.delete("gofer_session")
    assert guess(behind_proxy, "192.0.2.1", login_throttle.FREE + 2) == 429
    assert known.login("ada").status_code == 303
    assert visitor(behind_proxy, "192.0.2.1").login("ada").status_code == 429


def test_strangers_elsewhere_do_not_lock_a_name(behind_proxy: House) -> None:
    for number in range(20):
        guess(behind_proxy, f"198.51.100.{number}", login_throttle.FREE)
    assert visitor(behind_proxy, "192.0.2.2").login("ada").status_code == 303


def test_guesses_from_many_addresses_are_bounded_and_known_browsers_pass(
    behind_proxy: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = visitor(behind_proxy, "192.0.2.3")
    known.login("ada")
    monkeypatch.setattr(login_throttle, "FREE_FOR_NAME", 10)
    statuses = [guess(behind_proxy, f"2001:db8:0:{number:x}::1") for number in range(14)]
    assert statuses[:10] == [403] * 10
    assert statuses[-1] == 429
    assert known.login("ada").status_code == 303
    assert guess(behind_proxy, "203.0.113.1", name="ben") == 403, "other names are not concerned"


def test_a_known_browser_waits_for_its_own_mistakes_only(behind_proxy: House) -> None:
    known = visitor(behind_proxy, "192.0.2.4")
    known.login("ada")
    for _ in range(login_throttle.FREE + 1):
        known.login("ada", "wrong password")
    assert known.login("ada").status_code == 429
    assert visitor(behind_proxy, "192.0.2.4").login("ada").status_code == 303


def test_a_device_cookie_is_for_one_member_and_cannot_be_made_up(behind_proxy: House) -> None:
    bens = visitor(behind_proxy, "192.0.2.5")
    assert bens.login("ben").status_code == 303
    cookie = bens.client.cookies["gofer_device"]
    guess(behind_proxy, "192.0.2.5", login_throttle.FREE + 1)
    assert bens.login("ada").status_code == 429, "it is not Ada's"
    device, _, signature = cookie.partition(".")
    for forged in (f"{device}x.{signature}", f"{device}.{signature[::-1]}", f"{device}.", "x", cookie + "x"):
        browser = visitor(behind_proxy, "192.0.2.5")
        browser.client.cookies.set("gofer_device", forged)
        assert browser.login("ben").status_code == 429, forged


def test_the_cookie_signs_nobody_in(behind_proxy: House) -> None:
    known = visitor(behind_proxy, "192.0.2.6")
    made = known.login("ada")
    cookie = next(each for each in made.headers.get_list("set-cookie") if each.startswith("gofer_device="))
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    known.client.cookies.delete("gofer_session")
    assert known.get("/api/v1/me").status_code == 401


def test_a_crowd_of_guessers_does_not_stand_before_a_known_browser(behind_proxy: House) -> None:
    known = visitor(behind_proxy, "192.0.2.7")
    known.login("ada", PASSWORD)
    with ThreadPoolExecutor(30) as pool:
        guesses = [pool.submit(guess, behind_proxy, f"203.0.113.{number}") for number in range(60)]
        assert known.login("ada").status_code == 303
        assert {each.result() for each in guesses} <= {403, 503}
