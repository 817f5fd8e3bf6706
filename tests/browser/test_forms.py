"""What the pages' forms do, and refuse to do, without a browser in between."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx2
import pytest

from support.command_line import SIGNING_KEY
from support.patience import until
from support.web_server import Browser, csrf_in

from .places import places
from .seed_data import KEY, ODD, Lived


class Visitor:
    """Somebody signed in, who fills in forms."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def read(self, path: str) -> str:
        answer = self.browser.get(path, follow_redirects=True)
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
        return str(answer.text)

    def post(self, path: str, **fields: str | list[str]) -> httpx2.Response:
        """Fill in a form; two underscores stand for a dot in the names of fields."""
        csrf = csrf_in(self.read("/runs"))
        named = {name.replace("__", "."): value for name, value in fields.items()}
        return self.browser.client.post(path, data={"csrf": csrf, **named}, follow_redirects=False)

    def does(self, path: str, **fields: str | list[str]) -> str:
        """The page that an action leads to."""
        answer = self.post(path, **fields)
        assert answer.status_code == 303, f"{path}: {answer.status_code} {answer.text[:500]}"
        return self.read(answer.headers["location"])


@pytest.fixture(scope="module")
def owner(lived: Lived) -> Visitor:
    browser = lived.house.browser()
    browser.follow(lived.house.link(lived.house.owner()))
    return Visitor(browser)


@pytest.fixture(scope="module")
def viewer(lived: Lived) -> Visitor:
    member = lived.house.member("vera", "viewer", password="")
    browser = lived.house.browser()
    browser.follow(lived.house.link(member))
    return Visitor(browser)


def test_no_page_holds_a_secret(owner: Visitor, lived: Lived) -> None:
    for name, path in places(lived).items():
        if name != "missing":
            page = owner.read(path)
            assert KEY not in page
            assert SIGNING_KEY not in page


def test_a_stranger_is_sent_to_the_door(lived: Lived) -> None:
    for path in places(lived).values():
        answer = lived.house.browser().get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"][:12]) == (303, "/login?next="), path


def test_a_viewer_reads_and_changes_nothing(viewer: Visitor, lived: Lived) -> None:
    job = lived.jobs(kind="answer")[-1]["id"]
    page = viewer.read("/runs")
    assert "Retry ticked" not in page
    assert "Purge" not in viewer.read(places(lived)["conversation"])
    for path in (f"/runs/{job}/cancel", "/runs", "/agents", "/inbox/1/redeliver", "/members", "/schedules"):
        assert viewer.post(path).status_code == 403, path
    for path in ("/secrets", "/audit", "/settings", "/logs", "/inbox/simulate", "/connections/new/hello"):
        assert viewer.browser.get(path, follow_redirects=False).status_code == 403, path


def test_a_form_without_its_token_changes_nothing(owner: Visitor, lived: Lived) -> None:
    job = lived.jobs(kind="answer")[-1]["id"]
    assert owner.browser.post(f"/runs/{job}/redrive").status_code == 403
    assert owner.browser.post(f"/runs/{job}/redrive", csrf="0" * 64).status_code == 403


def test_what_makes_no_sense_is_said_on_a_page(owner: Visitor) -> None:
    for path, status in (("/runs?state=odd", 400), ("/runs/999999", 404), ("/conversations/none", 404)):
        answer = owner.browser.get(path)
        assert answer.status_code == status
        assert "<h1>" in answer.text
        assert "Traceback" not in answer.text


def test_several_runs_at_once(owner: Visitor, lived: Lived) -> None:
    done = lived.jobs(kind="answer", state="done")[0]["id"]
    page = owner.does("/runs", verb="redrive", job=str(done))
    assert "0 retried. 1 not:" in page
    lived.say("twice-1", "Which port should I use?", room="twice")
    lived.say("twice-2", "Which port should I use?", room="once more")
    lived.answered("twice-1", "twice-2")
    both = [str(job["id"]) for job in until(lambda: _two(lived))]
    assert "2 asked to stop." in owner.does("/runs", verb="cancel", job=both)
    until(lambda: {str(job["id"]) for job in lived.jobs(state="cancelled")} >= set(both))
    assert "2 retried." in owner.does("/runs", verb="redrive", job=both)
    owner.does("/runs", verb="cancel", job=both)
    assert owner.post("/runs", verb="redrive").status_code == 400
    assert owner.post("/runs", verb="explode", job=str(done)).status_code == 400


def _two(lived: Lived) -> list[dict[str, Any]]:
    found = [each for each in lived.jobs(state="waiting") if each["id"] > lived.first_waiting]
    return found if len(found) == 2 else []


def test_runs_are_filtered_by_the_address(owner: Visitor, lived: Lived) -> None:
    def ids(query: str) -> set[int]:
        return {int(number) for number in re.findall(r'href="/runs/(\d+)"', owner.read(f"/runs?{query}"))}

    done = {job["id"] for job in lived.jobs(state="done", kind="answer")}
    assert done
    assert ids("state=done") == done
    first = min(done)
    room = next(job["conversation_id"] for job in lived.jobs(kind="answer") if job["id"] == first)
    assert ids(f"state=done&conversation={room}") == {
        job["id"] for job in lived.jobs(state="done", kind="answer", conversation=room)
    }
    assert first not in ids(f"before={first}")
    page = owner.read("/runs?state=scheduled&kind=answer")
    assert '<option value="scheduled" selected>' in page or "<option selected>scheduled" in page
    assert '<a href="/runs">Show every run</a>' in page


def test_a_run_can_be_asked_for_outside_and_read_raw(owner: Visitor, lived: Lived) -> None:
    run = lived.jobs(kind="answer", state="done")[-1]["id"]
    (curl,) = re.findall(r'<pre id="curl"[^>]*>(.*?)</pre>', owner.read(f"/runs/{run}"), re.S)
    command = html.unescape(curl).replace("$GOFER_TOKEN", lived.house.token(lived.house.owner()))
    (header, url) = re.fullmatch(r'curl -H "Authorization: (.*)" (\S+)', command).groups()  # type: ignore[union-attr]
    assert httpx2.get(url, headers={"authorization": header}).json()["job"]["id"] == run
    raw = owner.read(f"/runs/{run}/events")
    for kind in ("job.created", "turn.started", "tool.finished", "attempt.finished"):
        assert kind in raw


def test_what_was_refused_is_told_and_headers_that_carry_secrets_are_not(owner: Visitor) -> None:
    page = owner.read("/inbox")
    assert "Refused lately" in page
    assert "The signature does not match the body." in page
    delivery = owner.read("/inbox/1").lower()
    assert "content-type" in delivery
    assert "signature" not in delivery


def test_the_last_lines_of_the_log_are_searched(owner: Visitor, lived: Lived) -> None:
    lines = lived.house.platform.recent_lines
    for level, event in (("info", "door.opened"), ("error", "roof.leaks")):
        told = {"level": level, "event": event, "timestamp": "2026-11-16T10:00:00Z", "where": "<i>attic</i>"}
        lines(None, level, told)
    assert "door.opened" in owner.read("/logs")
    found = owner.read("/logs?q=ROOF&level=warning")
    assert "roof.leaks" in found
    assert "&lt;i&gt;attic" in found
    assert "door.opened" not in found
    assert "Show every line" in owner.read("/logs?q=nothing-like-it")


def test_an_agents_page_shows_who_it_is_and_what_is_shadowed(
    owner: Visitor, viewer: Visitor, lived: Lived
) -> None:
    folder = lived.house.settings.data_dir / "agents" / "kind"
    page = owner.does("/agents/new", name="kind")
    assert "kind has a folder now" in page
    assert "What the agent knows about the people it works for" in html.unescape(page)
    assert owner.post("/agents/new", name="kind").status_code == 409
    (folder / "SOUL.md").write_text("# Limits\nNever <b>delete</b> mails.")
    (folder / "users").mkdir()
    (folder / "users" / "person_x.md").write_text("# Limits\nShe may delete mails.")
    page = owner.read("/agents/kind")
    stamp = re.findall(r'name="stamp" value="(\w+)"', page)[0]
    fields = {
        "toml": "",
        "notes": "# limits\nDelete at will.",
        "IDENTITY": "You are Kim.",
        "USER": "",
        "stamp": stamp,
    }
    page = owner.does("/agents", name="kind", **fields)
    assert (folder / "IDENTITY.md").read_text() == "You are Kim.\n"
    assert not (folder / "USER.md").exists()
    assert "limits: kind/SOUL.md shadows kind/AGENT.md" in page
    assert "Never &lt;b&gt;delete&lt;/b&gt; mails." in page, "both texts, as text"
    assert "Delete at will." in page
    assert "She may delete mails." in page
    assert "Never delete" not in viewer.read("/agents")
    seen = viewer.read("/agents/kind")
    assert "Delete at will." in seen
    assert "She may delete mails." not in seen, "what is known of a person is for owners"
    assert owner.post("/agents", name="kind", SOUL="", **{**fields, "stamp": "0"}).status_code == 409
    again = {**fields, "stamp": re.findall(r'name="stamp" value="(\w+)"', page)[0]}
    owner.does("/agents", name="kind", SOUL="# Limits\nnone", **again)
    assert "Never" in (folder / "SOUL.md").read_text(), "SOUL is not changed here"
    owner.does("/agents/kind/remove")
    assert not folder.exists()


def test_an_agent_is_checked_before_it_is_written(owner: Visitor, lived: Lived) -> None:
    wrong = owner.post("/agents", name="tidy", toml="model = 3", notes="", stamp="")
    assert wrong.status_code == 400
    assert "Line 1" in wrong.text
    assert "model = 3" in wrong.text
    page = owner.does(
        "/agents", name="tidy", toml='tools = ["read"]\n[[routes]]', notes="Be brief.", stamp=""
    )
    assert "In force from the next run on." in page
    assert lived.house.hears("tidy")
    stamp = re.findall(r'name="stamp" value="(\w+)"', page)[0]
    assert owner.post("/agents", name="tidy", toml="", notes="", stamp="0").status_code == 409
    assert "Saved." in owner.does("/agents", name="tidy", toml="", notes="Be very brief.", stamp=stamp)
    assert (lived.house.settings.data_dir / "agents" / "tidy.md").read_text() == "Be very brief."
    assert "/chat?agent=tidy" in owner.read("/agents")
    page = owner.does("/agents/tidy/remove")
    assert "removed" in page
    assert "no file: hears nothing" in page
    assert "/chat?agent=tidy" not in page + owner.read("/agents/tidy")
    assert not lived.house.hears("tidy")


def test_a_delivery_is_taken_in_again_and_one_like_it(owner: Visitor, lived: Lived) -> None:
    before = len(lived.hello.service.ledger)
    assert "Taken in as a new delivery." in owner.does("/inbox/1/redeliver")
    until(lambda: len(lived.hello.service.ledger) > before)
    body = lived.hello.service.message("made-up", "kitchen", "Are you there?").decode()
    page = owner.does("/inbox/simulate", connection=lived.connection, headers="", body=body)
    assert "replay" in page
    lived.answered("made-up")


def test_a_connection_is_tested_changed_and_switched(owner: Visitor, lived: Lived) -> None:
    here = f"/connections/{lived.connection}"
    assert "No check." in owner.does(f"{here}/test")
    assert "Switched off." in owner.does(here, enabled="off")
    assert "Switched on." in owner.does(here, enabled="on")
    kept = lived.hello.service.url
    assert owner.post(here, setting__reply_url="nonsense").status_code == 422
    assert f'value="{kept}"' in owner.does(here, setting__reply_url=kept)
    added = owner.does(
        "/connections/new/hello", name="Back door", secret__signing_key="x" * 20, setting__reply_url=kept
    )
    assert "Back door" in added
    assert "x" * 20 not in added
    (there,) = re.findall(r"/connections/(hello_\w+)/remove", added)
    assert "Removed." in owner.does(f"/connections/{there}/remove")


def test_a_secret_goes_in_and_never_comes_out(owner: Visitor) -> None:
    value = "a value that nobody may see again"
    page = owner.does("/secrets", owner="", name="weather_key", value=value)
    assert "weather_key is kept." in page
    assert value not in page
    assert value not in owner.read("/audit")
    assert "weather_key is gone." in owner.does("/secrets/remove", owner="", name="weather_key")


def test_a_shell_tells_what_it_is_uses_and_holds_until_it_is_closed(owner: Visitor, lived: Lived) -> None:
    lived.say("shell-1", "Make a folder", room="den")
    lived.answered("shell-1")
    (den,) = (
        each["id"] for each in lived.ask("GET", "/conversations")["conversations"] if each["title"] == "den"
    )
    (shell,) = lived.ask("GET", "/shells", params={"conversation": den})["shells"]
    here = f"/shells/{den}/{shell['agent_id']}"
    assert f'href="{here}"' in owner.read("/shells")
    page = owner.read(here)
    for words in ("none, by unconfined", "1.0 GiB", "mkdir", f'hx-get="{here}/inside"'):
        assert words in page
    inside = owner.read(f"{here}/inside")
    assert re.search(r"Memory</dt><dd>[\d.]+ [KM]iB of 1.0 GiB", inside)
    assert re.search(r"Disk</dt><dd>[\d.]+ (B|KiB) of 2.0 GiB", inside)
    (there,) = re.findall(r'href="([^"]+)">a &#34;b/', inside)
    assert "&lt;i&gt;note" in owner.read(there)
    told = lived.ask("GET", here, params={"path": ODD})
    assert [each["name"] for each in told["files"]] == ["<i>note"]
    assert told["use"]["alive"]
    for path in ("none", "../..", "a/../.."):
        assert owner.browser.get(f"{here}/inside", params={"path": path}).status_code == 404
    assert "Closed." in owner.does(f"{here}/close")
    assert owner.browser.get(here).status_code == 404


def test_a_schedule_is_told_in_words_and_run_at_once(owner: Visitor, lived: Lived) -> None:
    page = owner.does(
        "/schedules",
        name="mornings",
        cron="0 9 * * 1-5",
        kind="set_up",
        payload=json.dumps({"connection_id": lived.connection}),
        missed="skip",
        timezone="UTC",
    )
    assert "At 09:00 on Monday through Friday" in page
    schedule = re.findall(r"/schedules/(\w+)/run", page.split("<strong>mornings</strong>")[1])[0]
    assert "set_up #" in owner.does(f"/schedules/{schedule}/run")
    assert "switched off" in owner.does(f"/schedules/{schedule}/switch", enabled="off")
    assert "mornings is removed." in owner.does(f"/schedules/{schedule}/remove")
    assert owner.post("/schedules", name="x", cron="never", kind="set_up", missed="once").status_code == 422
    aimless = owner.post("/schedules", name="x", cron="* * * * *", kind="set_up", missed="once")
    assert aimless.status_code == 422
    assert "must name a connection" in aimless.text
    assert (
        "catch_up, set_up"
        in owner.post("/schedules", name="x", cron="* * * * *", kind="y", missed="once").text
    )


def test_a_schedule_says_something_to_an_agent(owner: Visitor, lived: Lived) -> None:
    lived.say("sched-1", "What is on this machine?", room="calendar")
    lived.answered("sched-1")
    found = lived.ask("GET", "/conversations")["conversations"]
    (place,) = (each["id"] for each in found if each["title"] == "calendar")
    assert place in owner.read("/schedules")
    wish = {"name": "standup", "cron": "0 9 * * *", "missed": "skip", "agent": "gofer", "conversation": place}
    page = owner.does("/schedules", **wish, say="What is <b>open</b>?")
    assert "What is &lt;b&gt;open&lt;/b&gt;?" in page
    schedule = re.findall(r"/schedules/(\w+)/run", page.split("<strong>standup</strong>")[1])[0]
    before = len(lived.jobs(conversation=place, kind="answer"))
    owner.does(f"/schedules/{schedule}/run")
    until(lambda: len(lived.jobs(conversation=place, kind="answer")) > before)
    assert "What is &lt;b&gt;open&lt;/b&gt;?" in owner.read(f"/conversations/{place}")
    owner.does(f"/schedules/{schedule}/remove")
    for wrong in ({"say": " "}, {"agent": "nobody"}, {"conversation": "none"}):
        assert owner.post("/schedules", **{"say": "Hello", **wish, **wrong}).status_code in (400, 404)


def test_members_and_tokens_are_shown_once(owner: Visitor, lived: Lived) -> None:
    added = owner.post("/members", name="otto", role="operator").text
    (link,) = re.findall(r"/link/([\w-]{20,})", added)
    otto = lived.house.browser()
    assert otto.follow(link).status_code == 303
    assert link not in owner.read("/members")
    made = owner.post("/tokens", name="robot", scope="read", life="30").text
    (token,) = re.findall(r"gofer_[\w-]{20,}", made)
    assert lived.house.api(token).get("/jobs").status_code == 200
    page = owner.read("/members")
    assert token not in page
    there = re.findall(r"/tokens/(\w+)/remove", page.split("<td>robot</td>")[1])[0]
    owner.does(f"/tokens/{there}/remove")
    assert lived.house.api(token).get("/jobs").status_code == 401


def test_a_run_that_did_not_do_its_work_is_not_passed_over(owner: Visitor, lived: Lived) -> None:
    failed = owner.read("/").split("<h2>Failed lately</h2>")[1].split("</section>")[0]
    assert ("refused" in failed, "<code>model.invalid</code>" in failed) == (True, True)


def test_a_run_shows_what_it_changed(owner: Visitor, lived: Lived) -> None:
    changes = owner.read(places(lived)["run"]).split('<pre class="diff"')[1].split("</pre>")[0]
    assert '<span class="add">+a kernel' in changes


def test_the_secrets_of_a_connection_say_when_they_were_used(owner: Visitor, lived: Lived) -> None:
    row = owner.read("/secrets").split(">signing_key</code>")[1].split("</tr>")[0]
    assert lived.connection in row
    assert "not yet" not in row


def test_every_change_is_on_record(lived: Lived, owner: Visitor) -> None:
    owner.does("/agents", name="noted", toml="", notes="", stamp="")
    owner.does("/agents/noted/remove")
    owner.does("/secrets", owner="", name="noted_key", value="a value to be noted")
    owner.does("/secrets/remove", owner="", name="noted_key")
    owner.does(f"/connections/{lived.connection}", enabled="on")
    page = owner.read("/audit")
    for action in ("agents.put", "agents.remove", "secrets.put", "secrets.remove", "connections.change"):
        assert action in page


def test_a_standing_rule_is_seen_revoked_and_restored(owner: Visitor, viewer: Visitor, lived: Lived) -> None:
    rule = "Never open the <b>cellar</b> door at night."
    lived.say("rule-1", f"Hello. {rule} Bye.", room="rules")
    lived.answered("rule-1")
    found = lived.ask("GET", "/conversations")["conversations"]
    (here,) = (f"/conversations/{each['id']}" for each in found if each["title"] == "rules")
    (kept,) = lived.ask("GET", f"{here}/rules")["rules"]
    assert (kept["text"], kept["message_seq"], kept["revoked"]) == (rule, 1, False)
    assert f"<li>{html.escape(rule)}" in owner.read(here)
    assert (
        "Revoke" not in viewer.read(here).split("Standing rules")[1].split("</details>")[0].split("holds.")[1]
    )
    assert viewer.post(f"{here}/rules/{kept['id']}/revoke").status_code == 403
    assert f"<s>{html.escape(rule)}</s>" in owner.does(f"{here}/rules/{kept['id']}/revoke")
    assert [each["revoked"] for each in lived.ask("GET", f"{here}/rules")["rules"]] == [True]
    assert "Restored." in owner.does(f"{here}/rules/{kept['id']}/restore")
    again = owner.post(f"{here}/rules/{kept['id']}/restore")
    assert again.status_code == 409 or "not forgotten" in owner.read(again.headers["location"])
    for missing in ("mem_nothing", "%00", "../x"):
        assert owner.post(f"{here}/rules/{missing}/revoke").status_code in (400, 404), missing


def test_a_purge_destroys_what_was_said(owner: Visitor, lived: Lived) -> None:
    lived.say("gone-1", "Something to forget", room="cellar")
    lived.answered("gone-1")
    found = lived.ask("GET", "/conversations")["conversations"]
    (cellar,) = (each["id"] for each in found if each["title"] == "cellar")
    here = f"/conversations/{cellar}"
    assert "Something to forget" in owner.read(here)
    assert "tick the box first" in owner.does(f"{here}/purge")
    page = owner.does(f"{here}/purge", sure="yes")
    assert "Purged:" in page
    assert "Something to forget" not in page


def test_the_doctor_makes_the_round(owner: Visitor) -> None:
    page = owner.does("/doctor")
    assert "Last examined" in page
    assert "SQLite, version" in page
