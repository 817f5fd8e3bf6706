"""`gofer update` in the home of a supervisor: it says how each release stands, what to do next, and is on record."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.cli import client
from gofer.cli.exit_codes import CONFLICT, NOT_FOUND, TRY_LATER
from gofer.releases.lifecycle import record_command
from gofer.store.tables import audit_entries
from gofer.supervision import record_commands
from gofer_supervisor.home import Home, Release
from support.command_line import Process, Terminal
from support.releases import write_key
from support.world import World

FAILED = {"to": "1.0", "reason": "The process serve ended by itself (exit code 3).", "asked": False}


@pytest.fixture
def home(data_dir: Path) -> Home:
    """The release 1.0 runs, 2.0 was taken back, 3.0 waits for a word."""
    made = Home(str(data_dir / "home"))
    made.prepare()
    made.add(Release(build="1.0", version="1.0", python=sys.executable), source="installed", proved_at=1.0)
    bad = Release(build="2.0", version="2.0", python=sys.executable)
    made.add(bad, source="file", approved_by="ada", taken_back={**FAILED, "at": time.time()})
    made.add(Release(build="3.0", version="3.0", python=sys.executable), source="file")
    for name in ("current", "good"):
        made.link(name, "1.0")
    return made


def commands(home: Home) -> list[tuple[str, str]]:
    found = [json.loads(place.read_text()) for place in sorted(Path(home.path, "commands").iterdir())]
    return [(one["action"], one["subject"]) for one in found]


def test_the_list_says_how_each_stands_and_what_failed(terminal: Terminal, home: Home) -> None:
    said = terminal("update", "list")
    states = {line.split()[0]: line for line in said.splitlines() if line[:3] in ("1.0", "2.0", "3.0")}
    assert "runs" in states["1.0"]
    assert "taken back" in states["2.0"]
    assert "waits for approval" in states["3.0"]
    assert "1.0 runs again. The process serve ended by itself (exit code 3)." in said
    assert "gofer update approve 3.0" in said
    assert "No supervisor runs here" in said
    home.take(0)
    assert "No supervisor" not in terminal("update", "list")
    found = terminal.json("update", "list")["releases"]
    assert [one["state"] for one in found] == ["runs", "taken back", "waits for approval"]
    assert "exit code 3" in terminal("update", "show", "2.0")


def test_status_and_doctor_say_what_was_taken_back_until_it_is_dropped(
    terminal: Terminal, home: Home
) -> None:
    assert "2.0 was taken back" in terminal("status")
    assert terminal.json("status")["taken_back"]["reason"] == FAILED["reason"]
    assert "2.0 was taken back, and 1.0 runs again" in terminal("doctor")
    terminal("update", "drop", "2.0")
    assert "taken back" not in terminal("status") + terminal("doctor") + terminal("update", "list")
    assert terminal.json("status")["taken_back"] is None


def test_keys_are_trusted_listed_and_not_trusted_any_more(
    terminal: Terminal, home: Home, tmp_path: Path
) -> None:
    assert terminal("update", "trust") == "No key is trusted.\n"
    public = write_key(tmp_path / "release.pem").with_suffix(".pub")
    id_ = terminal.json("update", "trust", str(public))["key"]
    assert terminal("update", "trust") == f"{id_}\n"
    terminal("update", "untrust", id_)
    assert terminal("update", "trust") == "No key is trusted.\n"
    assert "No key" in terminal("update", "untrust", id_, fails=NOT_FOUND)
    assert commands(home) == [("update.trust", id_), ("update.untrust", id_)]


@pytest.mark.parametrize(
    ("build", "code"), [("1.0", CONFLICT), ("nothing", NOT_FOUND), ("../../x", NOT_FOUND)]
)
def test_what_runs_or_is_not_there_is_not_dropped(
    terminal: Terminal, home: Home, build: str, code: int
) -> None:
    terminal("update", "drop", build, fails=code)
    assert not Path(home.path, "commands").exists(), "only what was done is on record"


def test_a_deployment_that_was_taken_back_says_why(terminal: Terminal, home: Home) -> None:
    home.take(0)  # somebody supervises
    terminal("update", "approve", "3.0")

    def take_back() -> None:
        while home.asked() is None:
            time.sleep(0.01)
        facts = {**home.manifest("3.0"), "taken_back": {**FAILED, "at": time.time()}}
        home.add(
            home.release("3.0"), **{name: facts[name] for name in ("source", "approved_by", "taken_back")}
        )
        home.answered()

    supervisor = threading.Thread(target=take_back)
    supervisor.start()
    terminal("update", "deploy", "3.0", fails=1)
    supervisor.join()
    assert "3.0: taken back. The process serve ended by itself (exit code 3)." in terminal.shown
    assert commands(home) == [("update.approve", "3.0"), ("update.deploy", "3.0")]


def test_a_rollback_is_over_when_the_release_before_serves(terminal: Terminal, home: Home) -> None:
    home.take(0)
    home.add(home.release("1.0"), source="file", previous="0.9")

    def supervise() -> None:
        while home.asked() is None:
            time.sleep(0.01)
        state = home.load()
        state.trial = {
            "build": "1.0",
            "previous": "0.9",
            "at": 1.0,
            "step": "revert",
            "why": "",
            "asked": True,
        }
        home.save(state)
        home.answered()
        home.link("current", "0.9")
        time.sleep(0.5)  # it is being started
        home.add(home.release("1.0"), source="file", taken_back={**FAILED, "at": 2.0, "asked": True})
        state.trial = None
        home.save(state)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    assert "0.9: runs again. The process serve ended" in terminal("update", "rollback")
    assert home.load().trial is None
    supervisor.join()


def under_way(home: Home, step: str, **more: Any) -> None:
    """As the supervisor writes it down."""
    state = home.load()
    begun = {
        "build": "3.0",
        "previous": "1.0",
        "by": "ada",
        "at": time.time() - 90,
        "since": time.time() - 30,
    }
    state.trial = {**begun, "step": step, **more}
    home.save(state)


@pytest.mark.parametrize(
    ("step", "more", "said"),
    [
        (
            "stop",
            {},
            "the release before ends in good order, since a while. Next: the store is copied; the new",
        ),
        (
            "migrate",
            {},
            "the new release migrates the store, since a while. Next: the new release starts; the",
        ),
        ("prove", {}, "the new release starts, since a while. Next: the new release is on probation."),
        ("prove", {"ready": True, "until": time.time() + 9999}, "If all goes well, it has proved itself in"),
        ("revert", {}, "the release before starts again, since a while.\n"),
    ],
)
def test_while_a_release_is_deployed_the_step_and_the_next_ones_are_told(
    terminal: Terminal, home: Home, step: str, more: dict[str, Any], said: str
) -> None:
    under_way(home, step, **more)
    for command in (["update", "list"], ["status"]):
        shown = re.sub(r"since \d+ s", "since a while", terminal(*command))
        assert said in shown
        assert ("If it fails, 1.0 runs again." in shown) == (step != "revert")
    told = terminal.json("status")["deploying"]
    assert (told["build"], told["previous"]) == ("3.0", "1.0")
    assert terminal.json("update", "list")["deploying"]["doing"] == told["doing"]


def test_a_release_that_does_not_work_and_has_none_before_it_is_not_called_good(
    terminal: Terminal, home: Home
) -> None:
    home.take(0)
    under_way(home, "prove", build="1.0", previous="", ready=True, unfit="5 of 6 attempts failed.")
    state = home.load()
    state.outage = 1.0  # nothing is about to be started
    home.save(state)
    listed = terminal.json("update", "list")["releases"]
    assert listed[0]["state"] == "runs, does not work as it should"
    for command in (["update", "list"], ["status"], ["doctor"]):
        assert "there is none to go back to. 5 of 6 attempts failed." in terminal(*command)


def test_a_command_waits_for_the_server_that_an_update_is_about_to_start(
    terminal: Terminal, home: Home, start: Callable[..., Process]
) -> None:
    home.take(0)
    under_way(home, "migrate")
    start("serve")
    assert "offline model" in terminal("say", "hello")
    assert "No server" not in terminal.shown


def test_a_command_does_not_wait_for_ever_and_not_at_all_where_nothing_can_run(
    terminal: Terminal, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "UPDATE_TAKES", 0.3)
    home.take(0)
    under_way(home, "migrate")
    for command in (["say", "hello"], ["secrets", "list"]):
        said = terminal(*command, fails=TRY_LATER)
        assert "Gofer is being updated: the new release migrates the store." in said
        assert "gofer update list" in said
    state = home.load()
    state.trial, state.outage = None, time.time()
    home.save(state)
    monkeypatch.setattr(client, "UPDATE_TAKES", 3600.0)
    assert "No server is running" in terminal("say", "hello", fails=TRY_LATER)
    terminal("secrets", "list")  # so that what is wrong can be put right


def test_without_a_supervisor_nothing_is_deployed_or_taken_back(terminal: Terminal, home: Home) -> None:
    home.link("good", "2.0")
    for command in (["rollback"], ["deploy", "3.0"]):
        assert "gofer up" in terminal("update", *command, fails=1)
    assert home.asked() is None


async def test_what_commands_did_is_in_the_audit_log_once(world: World, tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    home.prepare()
    record_command(home, "stage", "2.0", by="ada (command line)", unsigned=True)
    (place,) = Path(home.path, "commands").iterdir()
    content = place.read_bytes()
    for _ in range(2):
        place.write_bytes(content)  # as if the process had died before it removed it
        await record_commands(world.database, Path(home.path))
    place.with_name("5-1.json").write_text("[")
    await record_commands(world.database, Path(home.path))
    assert list(Path(home.path, "commands").iterdir()) == []
    (entry,) = await world.rows(select(audit_entries).where(audit_entries.c.action == "update.stage"))
    assert (entry.subject, entry.name, entry.status) == ("2.0", "ada (command line)", 200)
    assert entry.data["unsigned"] is True
