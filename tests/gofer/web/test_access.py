"""Signing in and out: by password, by link, and every way it must not work."""

from __future__ import annotations

from web_house import PASSWORD, House


def test_a_link_signs_in_once_and_sets_a_password(house: House) -> None:
    member = house.member("linda", "operator", password="")
    link = house.link(member)
    browser = house.browser()
    assert "Welcome, linda" in browser.get(f"/link/{link}").text
    done = browser.follow(link, name="linda", password=PASSWORD, again=PASSWORD)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert browser.cookie
    assert house.browser().follow(link).status_code == 410
    assert house.browser().login("linda").status_code == 303
