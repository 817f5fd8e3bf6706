"""The page of versions: where each release is from, the whole diff of a change, and the way back, for owners alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select

from gofer.jobs.notifications import JOBS
from gofer.releases.approval import tell_owners
from gofer.store import events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import JobState, in_state, jobs
from gofer.web.auth.sessions import csrf_for
from gofer_supervisor.home import Home, Release
from support.patience import Deadline
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


def texts(owner: httpx2.Client, conversation: str) -> list[str]:
    found = owner.get(f"/conversations/{conversation}/messages").json()["messages"]
    return [each["text"] for each in found]


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        (
            "revision.promoted",
            {"build": "1.1-abc", "previous": "1.0"},
            "has proved itself. The release before",
        ),
        (
            "revision.rolled_back",
            {"build": "1.2", "to": "1.0", "reason": "It fell."},
            "taken back, and `1.0`",
        ),
        ("revision.rolled_back", {"build": "1.3", "to": "1.3", "reason": "It fell."}, "none to go back to"),
    ],
)
def test_an_owner_who_has_the_web_chat_alone_is_told_there_once(
    supervised: House, kind: str, data: dict[str, str], told: str
) -> None:
    owner = supervised.api(supervised.token(supervised.owner()))
    member = supervised.api(
        supervised.token(supervised.member(f"olga-{data['build']}", "operator"), scope="write")
    )
    earlier, last, others = (
        one.post("/messages", json={"text": "/help"}).json()["conversation_id"]
        for one in (owner, owner, member)
    )
    number = abs(hash(told))
    for _ in range(2):
        supervised.write(tell_owners, vault=supervised.platform.vault, number=number, kind=kind, data=data)
    supervised.platform.signals.wake(JOBS)
    deadline = Deadline(30)
    while not any(told in text for text in texts(owner, last)):
        assert deadline.left > 0, texts(owner, last)
        time.sleep(0.05)
    query = select(jobs.c.id).where(
        jobs.c.kind == "release_notice", in_state(JobState.READY, JobState.RUNNING)
    )
    while supervised.read(lambda connection: connection.execute(query).first()) is not None:
        assert deadline.left > 0
        time.sleep(0.05)
    assert sum(told in text for text in texts(owner, last)) == 1
    for conversation in (earlier, others):
        assert not any(told in text for text in texts(owner, conversation))
    page = signed_in(supervised, supervised.owner()).get(f"/chat/{last}").text
    assert page.count("proved itself" if kind == "revision.promoted" else "It fell.") == 1
