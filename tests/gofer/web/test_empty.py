"""A fresh install: every page that has nothing to show says what to do next."""

from __future__ import annotations

import re

import pytest

from support.web_server import Browser, House

LISTS = (
    "runs", "conversations", "inbox", "shells", "schedules", "connections", "secrets", "costs",
    "logs", "versions", "doctor",
)  # fmt: skip


@pytest.fixture(scope="module")
def owner(house: House) -> Browser:
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    return browser


def test_the_overview_of_a_fresh_install_leads_to_the_agent(owner: Browser) -> None:
    page = owner.get("/").text
    assert 'href="/chat"' in page
    assert "Nothing. Questions, failures and broken connections appear here." in page


def test_an_empty_page_has_the_next_step(owner: Browser) -> None:
    leads: set[str] = set()
    for name in LISTS:
        page = owner.get(f"/{name}").text
        (empty,) = re.findall(r'<div class="panel empty">(.*?)</div>', page, re.S)
        steps = re.findall(r'href="(/[^"#]*)|<code>[^<]+</code>|Press (Examine now)|(Add one) below', empty)
        assert steps, f"{name}: {empty}"
        leads |= {step[0] for step in steps if step[0]}
    for path in leads:
        assert owner.get(path, follow_redirects=True).status_code == 200, path
