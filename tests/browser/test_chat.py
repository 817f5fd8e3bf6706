"""Talking to the agent in a real browser: live, steered, stopped, cut off and back, with the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, FilePayload, Page, Route, WebSocketRoute, expect

from agent.pictures import PNG
from support.patience import patience
from support.web_server import House

from .looking import DESK, PHONE, SHOTS, objections
from .seed_data import RECITED

pytestmark = pytest.mark.slow

SLOW = 20_000
GONE = "No connection, trying again"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("chat") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined")
    yield house
    house.close()


@pytest.fixture(scope="module")
def owner(browser: Browser, house: House) -> Iterator[BrowserContext]:
    """The owner, who came by a link."""
    context = browser.new_context(base_url=house.url, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"/link/{house.link(house.owner())}")
    page.get_by_role("button").first.click()
    page.wait_for_url("**/welcome")
    page.close()
    yield context
    context.close()


class Tab:
    """A page of the owner's, on which nothing may go wrong behind the scenes."""

    def __init__(self, owner: BrowserContext) -> None:
        self.page = owner.new_page()
        self.page.set_default_timeout(patience(SLOW))
        self.seen: list[str] = []
        self.page.on("pageerror", lambda error: self.seen.append(str(error)))
        self.page.goto("/chat")

    def afresh(self) -> Iterator[Page]:
        """In a conversation in which nothing was said."""
        before = self.page.url
        self.page.get_by_role("button", name="New conversation").click()
        self.page.wait_for_url(lambda url: "/chat/conv_" in url and url != before)
        yield self.page
        assert self.seen == []


@pytest.fixture(scope="module")
def tab_of_owner(owner: BrowserContext) -> Tab:
    return Tab(owner)


@pytest.fixture
def chat(tab_of_owner: Tab) -> Iterator[Page]:
    yield from tab_of_owner.afresh()


@pytest.fixture
def line(owner: BrowserContext) -> Iterator[Page]:
    """A page of its own, for those who stand between it and the server."""
    tab = Tab(owner)
    yield from tab.afresh()
    tab.page.close()


SPACES = """() => {
    const space = document.createElement("span");
    space.className = "w";
    document.querySelector(".item.reply .words").append(space);
    return getComputedStyle(space).display;
}"""


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, count: int = 1) -> None:
    expect(page.locator(".item.reply[id]")).to_have_count(count, timeout=patience(SLOW))
    expect(page.locator("[data-status]")).to_have_text("ready", timeout=patience(SLOW))


def test_output_comes_as_it_is_printed_and_is_all_there_after_a_reload(chat: Page) -> None:
    say(chat, "$ echo printed at once; sleep 0.6; echo later; exit 3")
    card = chat.locator(".item.step")
    # The last letters may be held back until it is sure that no secret begins with them.
    expect(card.locator(".output")).to_contain_text("printed at")
    expect(card.get_by_text("running")).to_be_visible()
    assert "later" not in card.locator(".output").inner_text()
    answered(chat)
    expect(card.locator(".state")).to_have_text("exit 3")
    before = chat.locator("[data-items]").inner_text()
    chat.reload()
    assert without_times(chat.locator("[data-items]").inner_text()) == without_times(before)
    expect(chat.locator(".rooms a[aria-current]")).to_contain_text("$ echo printed")


def test_a_reload_in_the_middle_of_an_answer_shows_all_of_it(page: Page) -> None:
    page.goto("/chat")
    say(page, "Please recite")
    spoken = page.locator("[data-streaming]")
    expect(spoken).to_contain_text("Verse 8 of")
    page.reload()
    expect(spoken).to_contain_text("Verse 8 of")
    first = spoken.inner_text().strip()
    assert RECITED.startswith(first)
    page.wait_for_function(
        "n => document.querySelector('[data-streaming]').innerText.trim().length > n", arg=len(first)
    )
    assert RECITED.startswith(spoken.inner_text().strip())
    answered(page)
    expect(spoken).to_be_hidden()
    assert page.locator("[data-items]").inner_text().count("Verse 8 of") == 1


def without_times(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.endswith(" ago") and line != "now"]


def test_a_message_steers_and_stop_stops(chat: Page) -> None:
    say(chat, "$ echo it has begun; sleep 1")
    expect(chat.locator(".output", has_text="it has")).to_be_visible()
    say(chat, "$ echo it was steered; sleep 60")
    expect(chat.locator(".output", has_text="it was")).to_be_visible()
    chat.get_by_role("button", name="Stop").click()
    expect(chat.locator(".item.reply[id]")).to_contain_text("Stopped")
    expect(chat.get_by_role("button", name="Stop")).to_be_hidden()
    expect(chat.locator(".item.said")).to_have_count(2)


def test_a_lost_line_loses_and_doubles_nothing(line: Page) -> None:
    lines: list[WebSocketRoute] = []

    def between(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        lines.append(route)
        route.on_message(lambda message: None if len(lines) == 1 else server.send(message))

    line.route_web_socket("**/live?*", between)
    line.reload()
    expect(line.locator("[data-status]")).to_have_text("ready")
    say(line, "$ echo lost on the way")
    expect(line.get_by_text("Sending …")).to_be_visible()
    lines[0].close(code=1011)
    answered(line)
    expect(line.get_by_text("Sending …")).to_have_count(0)
    expect(line.locator(".item.said")).to_have_count(1)
    line.reload()
    expect(line.locator(".item.said")).to_have_count(1)
    expect(line.locator(".item.reply[id]")).to_have_count(1)


def test_it_says_that_the_server_is_gone_and_that_it_is_back(line: Page, owner: BrowserContext) -> None:
    lines: list[WebSocketRoute] = []
    gone: list[bool] = []

    def between(route: WebSocketRoute) -> None:
        if gone:
            route.close(code=1006)
            return
        route.connect_to_server()
        lines.append(route)

    line.route_web_socket("**/live?*", between)
    line.route("**/chat/conv_*", lambda route: route.abort() if gone else route.continue_())
    line.reload()
    status = line.locator("[data-status]")
    expect(status).to_have_text("ready")
    gone.append(True)
    lines[0].close(code=1011)
    expect(status).to_have_text(GONE)
    say(line, "$ echo written while it was gone")
    expect(line.get_by_text("Sending …")).to_be_visible()
    expect(status).to_have_text(GONE)
    gone.clear()
    answered(line)
    expect(line.locator(".item.said")).to_have_count(1)
    owner.set_offline(True)
    expect(status).to_have_text(GONE)
    owner.set_offline(False)
    expect(status).to_have_text("ready")


def test_where_no_socket_passes_it_falls_back(line: Page) -> None:
    line.route_web_socket("**/live?*", lambda route: route.close())
    posted: list[str] = []
    line.route("**/say", lambda route: seen(route, posted))
    line.reload()
    say(line, "$ echo by another way")
    answered(line)
    assert posted


def seen(route: Route, posted: list[str]) -> None:
    posted.append(route.request.url)
    route.continue_()


def test_a_question_is_answered_with_the_keyboard_alone(chat: Page) -> None:
    chat.keyboard.type('$tool ask_user {"question": "Which colour?", "choices": ["red", "blue"]}')
    chat.keyboard.press("Enter")
    blue = chat.get_by_role("button", name="blue")
    expect(blue).to_be_visible()
    expect(chat.locator("[data-status]")).to_have_text("waits for you")
    for _ in range(30):
        chat.keyboard.press("Shift+Tab")
        if blue.evaluate("button => button === document.activeElement"):
            break
    chat.keyboard.press("Enter")
    expect(chat.locator(".item.reply[id]").last).to_contain_text("blue")
    answered(chat, 2)
    expect(blue).to_have_count(0)


def test_files_and_pictures_go_both_ways(chat: Page) -> None:
    chat.locator("[data-file]").set_input_files(
        [
            FilePayload(name="dot.png", mimeType="image/png", buffer=PNG),
            FilePayload(name="notes <b>.txt", mimeType="text/plain", buffer=b"remember the milk"),
        ]
    )
    expect(chat.locator("[data-attached] li")).to_have_count(2)
    say(chat, '$ cat inbox/*notes*\n$tool send_file {"path": "inbox/1-2-notes__b_.txt"}')
    answered(chat)
    expect(chat.locator(".item.reply[id]")).to_contain_text("remember the milk")
    assert chat.locator(".item.said img").evaluate("image => image.naturalWidth") == 1
    with chat.expect_download() as download:
        chat.locator(".item.step .file").click()
    assert Path(download.value.path()).read_bytes() == b"remember the milk"


def test_nothing_that_is_said_or_printed_acts(chat: Page) -> None:
    hostile = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    say(chat, f"$ cat <<'END'\n{hostile}\n[x](javascript:document.title='owned')\nEND")
    answered(chat)
    chat.reload()
    assert "owned" not in chat.title()
    assert chat.locator(".items script, .items img, .items a[href^=javascript]").count() == 0


def test_it_reads_well_in_both_themes_and_on_a_phone(chat: Page) -> None:
    assert objections(chat) == []
    say(chat, '$ printf "%s" "some   **output**"\n$tool write {"path": "a.py", "content": "x = 1\\n"}')
    answered(chat)
    for theme in ("light", "dark"):
        chat.emulate_media(color_scheme=theme)
        assert objections(chat) == []
        chat.screenshot(path=SHOTS / f"chat-{theme}.png")
    chat.set_viewport_size(PHONE)
    say(chat, "/help")
    answered(chat, 2)
    helped = chat.locator(".item.reply[id]", has_text="/status")
    assert helped.locator("br").count() > 3, "each command of /help stands on a line of its own"
    shown = chat.locator(".item.reply .words code", has_text="printf").first.inner_text()
    assert "some   **output**" in shown, "nor does code within a line lose any"
    assert chat.evaluate(SPACES) == "inline", "what Pygments calls w is white space, also on a phone"
    assert chat.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    expect(chat.get_by_role("button", name="Send")).to_be_in_viewport()
    chat.screenshot(path=SHOTS / "chat-phone.png")
    chat.set_viewport_size(DESK)
    chat.emulate_media(color_scheme="light")
