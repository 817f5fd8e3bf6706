"""One furnished server and one real Chromium for all of them.

The browser lives for this package alone: while its driver runs, no test could have a loop of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.patience import patience

from .looking import DESK
from .seed_data import Lived, lived_in

ROOT = Path(__file__).parents[2]
REQUIRED = "GOFER_BROWSER_TESTS"
"""Set to `required`, a machine without a browser fails instead of skipping; CI does that."""


@pytest.fixture(scope="session")
def chromium() -> str:
    found = subprocess.run(
        ["sh", str(ROOT / "scripts" / "browser"), "--find"], capture_output=True, text=True
    )
    if found.returncode:
        (pytest.fail if os.environ.get(REQUIRED) == "required" else pytest.skip)(found.stderr.strip())
    return found.stdout.strip()


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    data = tmp_path_factory.mktemp("house") / "data"
    data.mkdir(mode=0o700)
    with lived_in(data, sandbox="unconfined") as lived:
        yield lived


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=patience(20_000))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--renderer-process-limit=1"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def signed_in(browser: Browser, lived: Lived) -> Iterator[BrowserContext]:
    """The owner, who came by a link."""
    context = browser.new_context(base_url=lived.house.url)
    page = context.new_page()
    page.goto(f"/link/{lived.house.link(lived.house.owner())}")
    page.get_by_role("button").first.click()
    page.wait_for_url(lambda url: "/link/" not in url)
    page.close()
    yield context
    context.close()


@pytest.fixture(scope="package")
def tab(signed_in: BrowserContext) -> Page:
    """One for all that leave it as it was: opening another costs half a second of a core."""
    page = signed_in.new_page()
    page.set_default_timeout(patience(20_000))
    return page


@pytest.fixture
def page(tab: Page) -> Page:
    tab.set_viewport_size(DESK)
    return tab


@pytest.fixture
def own_page(signed_in: BrowserContext) -> Iterator[Page]:
    """For those who change its clock, its scripts or its listeners."""
    page = signed_in.new_page()
    page.set_default_timeout(patience(20_000))
    yield page
    page.close()
