"""What people do on the pages, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from support.patience import until

from .seed_data import Lived

pytestmark = pytest.mark.slow


def answers(lived: Lived) -> list[int]:
    """The runs there are, newest first."""
    return [job["id"] for job in lived.jobs() if job["kind"] == "answer"]


def test_what_strangers_write_is_shown_and_does_nothing(page: Page, lived: Lived) -> None:
    found = lived.ask("GET", "/conversations")["conversations"]
    (attic,) = (each["id"] for each in found if "attic" in each["title"])
    job = lived.jobs(conversation=attic, kind="answer")[0]
    for path in (
        f"/conversations/{job['conversation_id']}",
        f"/runs/{job['id']}",
        "/inbox/2",
        "/runs",
        "/inbox",
    ):
        page.goto(path)
        page.wait_for_timeout(50)
        assert "owned" not in page.title()
        assert page.locator("main script, main img, main b, main a[href^=javascript]").count() == 0
        assert page.get_by_text("<b>attic</b>").count() or path == "/inbox/2"
    page.goto(f"/conversations/{job['conversation_id']}")
    said = page.locator("article").first.inner_text()
    assert "<script>document.title='owned'</script>" in said
    assert "⟨U+202E⟩gnp.exe" in said
    assert "\x1b" not in said
    assert "␛]0;title␇" in said


def test_a_question_is_answered_and_the_run_goes_on_before_your_eyes(page: Page, lived: Lived) -> None:
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):  # woken by the stream
        page.goto(f"/runs/{lived.first_waiting}")
    given = page.locator("article details")
    given.get_by_text("Input").click()
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        page.evaluate("htmx.trigger('#run', 'gofer:changed')")
    page.wait_for_timeout(50)
    expect(given).to_have_attribute("open", "")
    page.goto("/")
    expect(page.get_by_text("Which port shall I use?")).to_be_visible()
    assert "stolen" not in str(lived.ask("GET", "/tokens")), "what came over the stream acted"
    page.get_by_role("button", name="8080").click()
    expect(page).to_have_url(re.compile(r"/runs/\d+$"))
    expect(page.get_by_text("Answered. The run goes on.")).to_be_visible()
    expect(page.locator("h1 + .state")).to_have_text("done")
    expect(page.get_by_text("Thank you, I shall use that one.")).to_be_visible()
    page.goto("/")
    expect(page.get_by_text("Which port shall I use?")).to_have_count(0)


def test_new_runs_are_announced_and_rows_do_not_jump(own_page: Page, lived: Lived) -> None:
    page = own_page
    page.clock.install()
    page.goto("/runs")
    top = page.locator("tr[data-row]").first.inner_text()
    lived.say("late-1", "What is on this machine?", room="late")
    lived.answered("late-1")
    page.clock.run_for(6000)
    announced = page.get_by_role("link", name="1 new: show")
    expect(announced).to_be_visible()
    assert page.locator("tr[data-row]").first.inner_text().split("\n")[0] == top.split("\n")[0]
    announced.click()
    expect(page.locator("tr[data-row]").first).to_contain_text("late")


def test_a_run_is_stopped_and_run_again(page: Page, lived: Lived) -> None:
    lived.say("slow-1", "Do it slowly", room="slow")
    job = until(lambda: next(iter(lived.jobs(state="running", kind="answer")), None))["id"]
    page.goto(f"/runs/{job}")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1 + .state")).to_have_text("cancelled")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Put back to work.")).to_be_visible()


def test_the_keyboard_is_enough(page: Page, lived: Lived) -> None:
    page.goto("/runs")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tr[data-row]").first).to_have_class("at")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/runs/{answers(lived)[0]}$"))
    page.wait_for_load_state()  # its address is there before its scripts are
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.goto("/logs")
    page.evaluate("window.before = true")
    with page.expect_navigation():
        page.keyboard.press("r")
    assert page.evaluate("window.before") is None
    page.keyboard.press("/")
    page.keyboard.type("/jk")
    expect(page.get_by_label("Contains")).to_have_value("/jk")


def test_the_theme_is_remembered(page: Page) -> None:
    page.goto("/costs")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.goto("/runs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Theme: dark").click()


def test_reading_needs_no_script(browser: Browser, signed_in: BrowserContext, lived: Lived) -> None:
    context = browser.new_context(
        base_url=lived.house.url, java_script_enabled=False, storage_state=signed_in.storage_state()
    )
    page = context.new_page()
    page.goto("/")
    page.get_by_role("link", name="Runs", exact=True).click()
    page.locator("tr[data-row] a[href^='/runs/']").last.click()
    expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    expect(page.locator("time").first).to_have_text(re.compile("ago|now"))
    context.close()


def test_who_was_signed_out_meanwhile_keeps_what_they_see_and_is_told(
    browser: Browser, signed_in: BrowserContext, lived: Lived
) -> None:
    context = browser.new_context(base_url=lived.house.url, storage_state=signed_in.storage_state())
    page = context.new_page()
    page.goto("/")
    context.clear_cookies()
    page.evaluate("htmx.trigger('#overview', 'gofer:changed')")
    expect(page.get_by_text("You are signed out")).to_be_visible()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Sign in again").click()
    expect(page).to_have_url(re.compile(r"/login\?next=%2F$"))
    context.close()
