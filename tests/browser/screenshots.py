"""Takes the pictures of README and docs anew: PYTHONPATH=tests python -m browser.screenshots"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, FilePayload, Page, sync_playwright

from gofer_standins.anthropic import Reply, call, calls, say
from support.command_line import SIGNING_KEY, Hello
from support.web_server import House

from .seed_data import KEY, Lived, Service

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
LINES = [
    f'10.0.0.{n % 9} - - [15/Nov/2026:10:{n:02}:00 +0000] "GET {"/export" if n < 37 else "/"} HTTP/1.1" 500 0'
    for n in range(41)
]
ACCESS_LOG = "\n".join(LINES).encode() + b"\n"
EXPORT = b"def export(day):\n    rows = fetch(day)\n    return [render(row) for row in rows]\n"
FOUND = (
    "**37 of 41** server errors come from `/export`: it fails on days without rows, for which `fetch` gives `None`."
    "\n\n```python\nrows = fetch(day) or []\n```\n\nThat is the whole change; it is made."
)


def script(request: Mapping[str, Any]) -> Reply:
    """A morning in a small team."""
    told = str(request["messages"])
    turn = sum(1 for message in request["messages"] if message["role"] == "assistant")
    if "publish" in told:
        return calls(
            call("ask_user", question="Shall I publish version 2.4 now?", choices=["Publish", "Wait"])
        )
    if "checks" in told:
        return calls(call("bash", command="sleep 600"))
    if "attached" in told:
        return _in_the_chat(turn)
    if turn == 0:
        return say("I will look at what the log says first.", call("bash", command="date; uptime"))
    if turn == 1:
        tests = call("bash", command="sleep 0.4; echo 12 passed")
        return calls(tests, call("bash", command="git --version"))
    return say("A file was missing since the last release. It is back, and the tests pass.")


def _in_the_chat(turn: int) -> Reply:
    if turn == 0:
        counting = "awk '$9 >= 500 {print $7}' inbox/1-1-access.log | sort | uniq -c"
        return say("Let me count them by address.", call("bash", command=counting))
    if turn == 1:
        reading = call("bash", command="cat inbox/1-2-export.py")
        return say("Nearly all come from one handler, which I have here.", reading)
    if turn == 2:
        edit = {"old": "rows = fetch(day)\n", "new": "rows = fetch(day) or []\n"}
        return calls(call("edit", path="inbox/1-2-export.py", edits=[edit]))
    return say(FOUND)


@contextlib.contextmanager
def team(folder: Path) -> Iterator[Lived]:
    """A house in which the morning has been."""
    with contextlib.ExitStack() as stack:
        service, hello = Service(script), Hello()
        stack.callback(service.close)
        stack.callback(hello.close)
        house = House(folder, anthropic_key=KEY, anthropic_base_url=service.url, sandbox="unconfined")
        stack.callback(house.close)
        lived = Lived(house, hello)
        settings = {"reply_url": hello.service.url}
        wish = {"integration": "hello", "name": "Team room", "settings": settings}
        made = lived.ask("POST", "/connections", json={**wish, "secrets": {"signing_key": SIGNING_KEY}})
        lived.connection = made["connection"]["id"]
        yield lived


def morning(lived: Lived) -> None:
    """What the overview and a run show."""
    lived.say("m1", "Why do requests fail since this morning? Please fix it.", room="Broken requests")
    lived.say("m2", "Please publish the next version.", room="Release")
    lived.answered("m1", "m2")
    lived.say("m3", "Run the checks.", room="Nightly checks")
    time.sleep(3)


def taken(context: BrowserContext, lived: Lived) -> None:
    """All pictures, in the light and in the dark as the docs show them."""
    page = context.new_page()
    page.goto(f"/link/{lived.house.link(lived.house.owner())}")
    page.get_by_role("button").first.click()
    page.wait_for_url("**/welcome")
    chat(page)
    for connection in lived.ask("GET", "/connections")["connections"]:
        page.goto(f"/connections/{connection['id']}")
        page.get_by_role("button", name="Test", exact=True).click()
    morning(lived)
    run = next(
        job for job in reversed(lived.jobs(kind="answer")) if "webchat" not in str(job["connection_id"])
    )
    for name, path, theme in (("overview", "/", "light"), ("run", f"/runs/{run['id']}", "dark")):
        page.set_viewport_size({"width": 1240, "height": 860})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.goto(path)
        page.screenshot(path=PICTURES / f"{name}.png")


def chat(page: Page) -> None:
    page.set_viewport_size({"width": 1200, "height": 960})
    page.goto("/chat")
    files: list[FilePayload] = [
        {"name": "access.log", "mimeType": "text/plain", "buffer": ACCESS_LOG},
        {"name": "export.py", "mimeType": "text/x-python", "buffer": EXPORT},
    ]
    page.locator("[data-file]").set_input_files(files)
    page.locator("[data-attached] li").nth(1).wait_for()
    page.get_by_label("Message", exact=True).fill(
        "Why so many errors yesterday? The log and the handler are attached."
    )
    page.keyboard.press("Enter")
    page.locator(".item.reply[id]").wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=PICTURES / "chat.png")


def main() -> None:
    found = subprocess.run(
        ["sh", str(ROOT / "scripts" / "browser"), "--find"], capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        with team(data) as lived:
            taken(browser.new_context(base_url=lived.house.url), lived)
        browser.close()


if __name__ == "__main__":
    main()
