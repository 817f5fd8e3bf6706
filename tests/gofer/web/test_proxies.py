"""Behind a reverse proxy: which headers are believed, and what a cookie looks like by https."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from starlette.datastructures import Headers

from gofer.settings import Settings
from gofer.web.auth import login_throttle
from gofer.web.auth.client_address import Peers
from gofer.web.auth.sessions import csrf_for
from support.web_server import PASSWORD, House

PUBLIC = "https://gofer.example.org"
BY_PROXY = {"host": "gofer.example.org", "x-forwarded-proto": "https", "origin": PUBLIC}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, public_url=PUBLIC, trusted_proxies="127.0.0.1")
    house.member("ada", "owner")
    yield house
    house.close()


def login(house: House, password: str = PASSWORD, **headers: str) -> httpx2.Response:
    form = {"name": headers.pop("name", "ada"), "password": password}
    return httpx2.post(f"{house.url}/login", data=form, headers={**BY_PROXY, **headers})


def test_by_https_the_cookie_is_bound_to_this_host(house: House) -> None:
    cookie = login(house).headers["set-cookie"]
    assert cookie.startswith("__Host-gofer_session=")
    assert "Secure" in cookie
    value = cookie.partition("=")[2].partition(";")[0]
    me = f"{house.url}/api/v1/me"
    secure = httpx2.get(me, headers={**BY_PROXY, "cookie": f"__Host-gofer_session={value}"})
    assert secure.json()["name"] == "ada"
    # Another site under the same domain could set a cookie without the prefix.
    plain = httpx2.get(me, headers={**BY_PROXY, "cookie": f"gofer_session={value}"})
    assert plain.status_code == 401
    made = httpx2.post(
        f"{house.url}/api/v1/jobs/987654321/cancel",
        headers={**BY_PROXY, "cookie": f"__Host-gofer_session={value}", "x-gofer-csrf": csrf_for(value)},
    )
    assert made.status_code == 404


def test_on_this_machine_it_works_by_http_as_well(house: House) -> None:
    browser = house.browser()
    assert browser.login("ada").status_code == 303
    assert browser.get("/api/v1/me").status_code == 200


def test_an_address_is_held_up_as_the_trusted_proxy_tells_it(house: House) -> None:
    for number in range(login_throttle.FREE + 1):
        guess = login(
            house, "wrong password", name=f"who{number}", **{"x-forwarded-for": "192.0.2.1, 198.51.100.7"}
        )
        assert guess.status_code == 403
    held_up = login(house, name="who99", **{"x-forwarded-for": "192.0.2.99, 198.51.100.7"})
    assert held_up.status_code == 429
    assert login(house, **{"x-forwarded-for": "198.51.100.8"}).status_code == 303


def address(proxies: str, peer: str, *forwarded: str) -> str:
    headers = Headers(raw=[(b"x-forwarded-for", value.encode()) for value in forwarded])
    return Peers(Settings(trusted_proxies=proxies)).address({"client": (peer, 1)}, headers)


def test_the_client_is_the_last_address_no_trusted_proxy_vouches_for() -> None:
    assert address("", "10.0.0.1", "1.2.3.4") == "10.0.0.1"
    assert address("10.0.0.0/8", "10.0.0.1", "1.2.3.4") == "1.2.3.4"
    assert address("10.0.0.0/8", "192.0.2.1", "1.2.3.4") == "192.0.2.1"
    assert address("10.0.0.0/8", "10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2") == "1.2.3.4"
    assert address("10.0.0.0/8", "10.0.0.1", "6.6.6.6", "1.2.3.4") == "1.2.3.4"
    assert address("10.0.0.0/8", "10.0.0.1", "6.6.6.6, nonsense") == "10.0.0.1"
    assert address("10.0.0.0/8,::1", "::1", "2001:db8::1") == "2001:db8::1"
    assert address("10.0.0.0/8", "10.0.0.1") == "10.0.0.1"
    assert address("10.0.0.0/8", "::ffff:10.0.0.1", "::ffff:1.2.3.4") == "1.2.3.4"
