"""Every page in both themes and at a phone's width: nothing axe-core objects to, nothing from elsewhere, no error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from .looking import DESK, PHONE
from .places import places
from .seed_data import Lived

pytestmark = pytest.mark.slow

AXE = Path(__file__).parent / "axe-4.14.0.min.js"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
SHOTS = Path(__file__).parents[2] / ".artefacts" / "screenshots"
SHOWN = ("overview", "runs", "run", "inbox", "connection", "costs")
"""Pages of which there is also a picture in the dark and on a phone."""
CUT_OFF = """[...document.querySelectorAll(".panel, .figures")].filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.textContent.trim().slice(0, 40))"""
"""Panels that hide the end of what stands in them."""


@pytest.fixture(scope="module")
def axe() -> str:
    source = AXE.read_text("utf-8")
    assert hashlib.sha256(source.encode()).hexdigest() == AXE_SHA256
    SHOTS.mkdir(parents=True, exist_ok=True)
    return source


@pytest.fixture
def watched(own_page: Page, lived: Lived, axe: str) -> Iterator[Page]:
    """A page on which nothing may go wrong behind the scenes."""
    page = own_page
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("console", lambda said: seen.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda sent: None if sent.url.startswith((lived.house.url, "data:")) else seen.append(sent.url),
    )
    page.add_init_script(axe)  # outside the page's own policy, which would refuse it
    yield page
    expected = "the server responded with a status of 404"  # the page that is not there, and the stream's
    assert [each for each in seen if expected not in each] == []


def objections(page: Page, name: str, within: str = "html") -> Iterator[str]:
    """What is wrong with the page as it is: to axe-core in the light and, on a phone, in the dark; what is cut off."""
    yield from violations(page, "light", within)
    yield from (f"cut off: {each}" for each in page.evaluate(CUT_OFF))
    page.screenshot(path=SHOTS / f"{name}-light.jpeg", quality=70)
    page.emulate_media(color_scheme="dark")
    if name in SHOWN:
        page.screenshot(path=SHOTS / f"{name}-dark.jpeg", quality=70)
    page.set_viewport_size(PHONE)
    yield from violations(page, "dark", within)
    yield from (f"cut off on a phone: {each}" for each in page.evaluate(CUT_OFF))
    width = page.evaluate("document.documentElement.scrollWidth")
    if name in SHOWN:
        page.screenshot(path=SHOTS / f"{name}-phone.jpeg", quality=70)
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    if width > PHONE["width"]:
        yield f"{width} pixels wide on a phone"


def violations(page: Page, theme: str, within: str) -> Iterator[str]:
    options = {"resultTypes": ["violations"], "selectors": False}
    found: Any = page.evaluate("([within, options]) => axe.run(within, options)", [within, options])
    yield from (f"{theme}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"])


@pytest.mark.parametrize("half", [0, 1])
def test_every_page_reads_well_in_both_themes_and_on_a_phone(watched: Page, lived: Lived, half: int) -> None:
    wrong = {}
    watched.set_viewport_size(DESK)
    watched.emulate_media(color_scheme="light")
    for name, path in list(places(lived).items())[half::2]:
        answer = watched.goto(path)
        assert answer is not None
        assert answer.status == (404 if name == "missing" else 200), path
        if name == "shell":
            watched.get_by_text("In use now").wait_for()
        if found := list(objections(watched, name)):
            wrong[path] = found
    assert wrong == {}


def test_who_is_not_signed_in_is_not_received_worse(browser: Browser, lived: Lived, axe: str) -> None:
    """The door, the link, the API's page and what is not there."""
    context = browser.new_context(base_url=lived.house.url, viewport=DESK)
    context.add_init_script(axe)
    page = context.new_page()
    link = f"/link/{lived.house.link(lived.house.owner())}"
    wrong = {}
    for name, path in {"login": "/login", "link": link, "api": "/api/v1/docs", "lost": "/nowhere"}.items():
        page.goto(path)
        # One noun of the API looks like the other.
        if found := list(objections(page, name, "#connections" if name == "api" else "html")):
            wrong[name] = found
    context.close()
    assert wrong == {}


def test_the_way_out_is_in_view_on_a_small_screen(page: Page) -> None:
    page.goto("/schedules")
    for height in (800, 500):
        page.set_viewport_size({"width": 1200, "height": height})
        box = page.get_by_role("button", name="Sign out").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= height
