"""From the printed link to a true answer, in a real browser, without a key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from gofer_standins.github import GitHubService
from support.patience import patience
from support.web_server import PASSWORD, House

from .looking import DESK, PHONE, SHOTS, objections

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("first") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined", anthropic_base_url="http://127.0.0.1:9")
    yield house
    house.close()


@pytest.fixture
def fresh(browser: Browser, house: House) -> Iterator[Page]:
    """Somebody who has never been here."""
    context = browser.new_context(base_url=house.url, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(patience(20_000))
    yield page
    context.close()


@pytest.fixture(scope="module")
def settled(browser: Browser, house: House) -> Iterator[Page]:
    """The owner on the welcome page, who came by a link."""
    context = browser.new_context(base_url=house.url, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(patience(20_000))
    page.goto(f"/link/{house.link(house.owner())}")
    page.get_by_role("button").first.click()
    page.wait_for_url("**/welcome")
    yield page
    context.close()


def test_from_the_link_to_an_answer_and_back_by_password(fresh: Page, house: House) -> None:
    link = f"/link/{house.link(house.owner())}"
    fresh.goto(link)
    fresh.locator("input[name=password]").fill(PASSWORD)
    fresh.locator("input[name=again]").fill(PASSWORD)
    fresh.get_by_role("button").first.click()
    fresh.wait_for_url("**/welcome")
    expect(fresh.get_by_text("works at once")).to_be_visible()
    expect(fresh.get_by_text("Key", exact=False).first).to_be_visible()
    expect(fresh.locator(".checks")).to_contain_text("master key")
    fresh.get_by_role("link", name="Open the chat").click()
    fresh.get_by_label("Message", exact=True).fill("$ echo the answer is $((6 * 7))")
    fresh.keyboard.press("Enter")
    expect(fresh.locator(".item.reply[id]")).to_contain_text("the answer is 42", timeout=patience(20_000))
    fresh.goto("/welcome")
    expect(fresh.get_by_text("you have", exact=True)).to_be_visible()
    fresh.get_by_role("button", name="Sign out").click()
    fresh.wait_for_url("**/login*")
    fresh.goto(link)
    expect(fresh.get_by_text("was used already")).to_be_visible()
    fresh.goto("/login?next=/welcome")
    fresh.locator("input[name=name]").fill("owner")
    fresh.locator("input[name=password]").fill(PASSWORD)
    fresh.get_by_role("button").first.click()
    fresh.wait_for_url("**/welcome")


def test_each_step_is_honest_about_what_does_not_work(settled: Page) -> None:
    settled.goto("/welcome")
    settled.get_by_label("Token", exact=True).fill("this is no token")
    settled.get_by_role("button", name="Connect the bot").click()
    expect(settled.get_by_role("alert")).to_contain_text("Not connected")
    settled.get_by_label("Key", exact=True).fill("sk-ant-kept-without-a-test-0123456789")
    settled.get_by_role("button", name="Keep the key").click()
    expect(settled.locator(".note.ok")).to_contain_text("It was not tested.")
    expect(settled.get_by_text("there is a key", exact=True)).to_be_visible()
    assert "0123456789" not in settled.content()
    for theme in ("light", "dark"):
        settled.emulate_media(color_scheme=theme)
        expect(settled.locator(".checks")).to_be_visible()
        assert objections(settled) == []
        settled.screenshot(path=SHOTS / f"welcome-{theme}.png", full_page=True)
    settled.set_viewport_size(PHONE)
    assert settled.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    settled.goto("/docs/operations.md#the-data-directory")
    assert objections(settled) == []
    assert settled.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    settled.set_viewport_size(DESK)
    settled.emulate_media(color_scheme="light")


def test_an_app_at_github_is_made_by_pressing_buttons(settled: Page, house: House) -> None:
    """In a real browser, whose policy lets the form go to GitHub and nowhere else."""
    stack = contextlib.AsyncExitStack()
    github = house.run(stack.enter_async_context(GitHubService().open()))
    try:
        settled.goto("/welcome")
        settled.get_by_role("link", name="Make an App in one click").click()
        settled.get_by_label("Name", exact=True).fill("pressed")
        settled.locator("input[name='setting.web_url']").fill(github.url)
        settled.get_by_role("button", name="Show what it asks for").click()
        expect(settled.get_by_text("clone, and push branches of its own")).to_be_visible()
        settled.get_by_role("button", name="Continue to").click()
        settled.wait_for_url("**/connections/github_*")
        expect(settled.get_by_role("main")).to_contain_text("The App pressed is installed nowhere yet.")
        expect(settled.locator('main a[href$="/pressed/installations/new"]')).to_be_visible()
    finally:
        house.run(stack.aclose())
