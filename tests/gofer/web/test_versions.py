"""The page of versions: where each release is from, the whole diff of a change, and the way back, for owners alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer.store import events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.web.auth.sessions import csrf_for
from gofer_supervisor.home import Home, Release
from support.web_server import Browser, House

DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+<script>alert(1)</script>\n"


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    home = Home(str(folder / "home"))
    home.prepare()
    change = {"diff": DIFF, "summary": "Because.", "agent": "gofer", "by": "Ann", "mark": "1"}
    home.add(Release(build="1.0", version="1.0", python=sys.executable), source="installed")
    made = Release(build="1.1-abc", version="1.1", python=sys.executable)
    home.add(made, source="change", change=change, previous="1.0", approved_by="Ann")
    home.link("current", "1.1-abc")
    house = House(folder, build="1.1-abc")
    yield house
    house.close()


def signed_in(house: House, member: str) -> Browser:
    browser = house.browser(accept="text/html")
    browser.follow(house.link(member))
    return browser


def roll_back(browser: Browser) -> int:
    return browser.post("/versions/rollback", csrf=csrf_for(browser.cookie)).status_code


def test_what_the_supervisor_saw_is_listed_whatever_it_says(supervised: House) -> None:
    for kind, data in (
        ("worker.spawned", {"name": "serve", "build": "1.0", "happened_at": 1.0}),
        ("worker.exited", {"name": "serve", "code": 1, "last_lines": ["boom"], "happened_at": 2.0}),
        ("revision.promoted", {}),
    ):
        supervised.write(events.record, kind=kind, workspace_id=FIRST_WORKSPACE, data=data)
    page = signed_in(supervised, supervised.owner()).get("/versions")
    assert page.status_code == 200
    assert "serve was started" in page.text
    assert "boom" in page.text


def test_a_release_shows_the_whole_change_and_only_an_owner_goes_back(supervised: House) -> None:
    home = Home(str(supervised.settings.home_path))
    operator = signed_in(supervised, supervised.member("Olga", "operator"))
    owner = signed_in(supervised, supervised.owner())
    page = operator.get("/versions/1.1-abc").text
    assert "+&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a change that the agent gofer made, asked by Ann" in page
    assert "nobody yet" in operator.get("/versions/1.0").text, "the installed one"
    assert operator.get("/versions/nothing").status_code == 404
    assert "Roll back" not in operator.get("/versions").text
    assert "Roll back" in owner.get("/versions").text
    assert roll_back(operator) == 403
    assert home.asked() is None
    assert roll_back(owner) == 303
    asked = home.asked()
    assert asked is not None
    assert asked["do"] == "rollback"
    assert roll_back(owner) == 409, "one thing at a time"
    assert Path(home.path, "request.json").exists()


def test_the_overview_says_what_was_taken_back_and_why(supervised: House) -> None:
    home = Home(str(supervised.settings.home_path))
    owner = signed_in(supervised, supervised.owner())
    assert "was taken back" not in owner.get("/").text
    ended = {"to": "1.1-abc", "reason": "<b>It</b> fell over.", "at": 5.0, "asked": False}
    home.add(Release(build="1.2-bad", version="1.2", python=sys.executable), source="file", taken_back=ended)
    page = owner.get("/").text
    assert "was taken back" in page
    assert "&lt;b&gt;It&lt;/b&gt; fell over." in page
    assert "taken back" in owner.get("/versions").text
    assert "fell over." in owner.get("/versions/1.2-bad").text
