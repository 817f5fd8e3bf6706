"""`gofer runtimes host` as a real process, between a real server and a real tmux."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from gofer.crash import EXIT_CODE
from gofer.store.tables import hops
from gofer.web.api.runtimes import LOOK_EVERY
from support.command_line import Forked
from support.patience import patience, until
from support.terminals import AGENT, Terminals, terminals
from support.web_server import House

from .conftest import Scene, furnish

FILE = """
host = "laptop"
url = "{url}"
state = "{state}"

[runtimes.{runtime}]
agent = "{agent}"
kind = "tmux"
pane = "{pane}"
program = "{program}"
prompt = "^>$"
socket = "{socket}"
{more}
"""

ACP_FILE = """
host = "laptop"
url = "{url}"
state = "{state}"

[runtimes.{runtime}]
agent = "coder"
kind = "acp"
command = {command}
"""


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


class Station:
    """A host's file and the processes that a test starts with it."""

    def __init__(self, scene: Scene, folder: Path, desk: Terminals | None = None) -> None:
        self.scene, self.folder = scene, folder
        if desk is not None:
            self.desk = desk
        self.pane = ""
        self.processes: list[Forked] = []
        self.token = scene.host.headers["authorization"].removeprefix("Bearer ")
        scene.age(1000)  # the host that the scene plays has gone

    @property
    def name(self) -> str:
        return self.scene.runtime

    def agent(self) -> None:
        """Start the agent in a window of its own; it answers with its own token."""
        self.pane = self.desk.agent(self.name, *self.command[2:])

    @property
    def command(self) -> list[str]:
        token = self.scene.program.headers["authorization"].removeprefix("Bearer ")
        return [str(AGENT), str(self.desk.log(self.name)), "--post", self.scene.house.url, token]

    def write(self, **more: Any) -> Path:
        path = self.folder / "runtimes.toml"
        path.write_text(
            FILE.format(
                url=self.scene.house.url, state=self.folder / "state", runtime=self.name, agent=self.scene.agent,
                pane=f"desk:{self.name}", program=AGENT.name, socket=self.desk.socket,
                more="\n".join(f"{name} = {value!r}" for name, value in more.items()),
            )
        )  # fmt: skip
        path.chmod(0o600)
        return path

    def start(self, **environment: str) -> Forked:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
        command = ["runtimes", "host", "--file", str(self.folder / "runtimes.toml")]
        given = {"GOFER_DATA_DIR": str(self.folder / "data"), "GOFER_TOKEN": self.token, **environment}
        errors = self.errors(len(self.processes))
        errors.touch()
        self.processes.append(Forked({**kept, **given}, command, os.devnull, os.devnull, str(errors)))
        return self.processes[-1]

    def errors(self, number: int = -1) -> Path:
        """What a process said; the last one's by default."""
        return self.folder / f"host-{number if number >= 0 else len(self.processes) - 1}.err"

    def says(self, words: str) -> None:
        """Wait until the last process says something."""
        until(lambda: words in self.errors().read_text(), within=20)

    def wait_for(self, state: str) -> None:
        until(lambda: self.scene.owner.get(f"/runtimes/{self.name}").json()["state"] == state, within=20)

    def close(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture
def station(scene: Scene, desk: Terminals, tmp_path: Path) -> Iterator[Station]:
    made = Station(scene, tmp_path, desk)
    yield made
    made.close()


def test_a_pane_is_told_answers_once_is_killed_and_started_again(station: Station) -> None:
    scene = station.scene
    station.agent()
    station.write(spawn=[sys.executable, "-I", *station.command])
    station.start()
    station.wait_for("idle")
    conversation, trigger = scene.say("please review the change")
    scene.ended(trigger)
    scene.until(lambda: scene.replies(conversation))
    assert [text.count("PLEASE REVIEW THE CHANGE") for text in scene.replies(conversation)] == [1]
    assert scene.hops(trigger) == [("live", "answered", "")]
    assert len(station.desk.told(station.name)) == 1

    station.desk.run("kill-pane", "-t", station.pane)
    said = scene.owner.post(f"/conversations/{conversation}/messages", json={"text": "and once more?"}).json()
    scene.ended(said["job_id"])
    scene.until(lambda: len(scene.replies(conversation)) == 2)
    assert "AND ONCE MORE?" in scene.replies(conversation)[-1]
    actions = [(action, state) for action, state, _ in scene.hops(said["job_id"])]
    assert actions[-1] == ("spawn", "answered")
    assert "please review the change" in station.desk.told(station.name)[-1]["pasted"][0], (
        "with what was said before"
    )

    process = station.processes[0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience(20)) == 0
    told = station.errors().read_text()
    assert "This is laptop." in told
    assert station.token not in told
    assert scene.owner.get(f"/runtimes/{station.name}").json()["state"] == "offline", "said when it left"


def test_a_pane_that_was_closed_is_resumed_once_its_host_has_seen_that_it_is_gone(station: Station) -> None:
    scene = station.scene
    station.agent()
    station.write(resume=[sys.executable, "-I", *station.command], spawn=["false"])
    station.start()
    station.wait_for("idle")
    station.desk.run("kill-pane", "-t", station.pane)
    station.processes[0].send_signal(signal.SIGTERM)
    assert station.processes[0].wait(patience(20)) == 0
    station.start()  # a host that has never seen the pane
    station.says(f"offline (runtime.gone, no pane desk:{station.name} with {AGENT.name} in front)")
    station.wait_for("offline")
    conversation, trigger = scene.say("what is left?")
    scene.ended(trigger)
    assert scene.hops(trigger) == [("resume", "answered", "")]
    scene.until(lambda: scene.replies(conversation))


def test_a_pane_that_is_killed_after_it_has_acknowledged_is_not_waited_for(station: Station) -> None:
    scene = station.scene
    station.pane = station.desk.agent(station.name)  # it reads, and does not answer
    station.write(resume=[sys.executable, "-I", *station.command])
    station.start()
    station.wait_for("idle")
    conversation, trigger = scene.say("are you at it?")
    scene.until(lambda: scene.hops(trigger) == [("live", "delivered", "")])
    order = {"trigger": trigger, "hop": 1, "conversation": conversation}
    assert scene.acknowledge(order).json()["ignored"] is False
    scene.house.write(lambda c: c.execute(update(hops).values(delivered_at=hops.c.delivered_at - 10)))
    station.desk.run("kill-pane", "-t", station.pane)
    station.processes[0].send_signal(signal.SIGTERM)
    assert station.processes[0].wait(patience(20)) == 0
    assert scene.hops(trigger) == [("live", "acknowledged", "")], (
        "a host that leaves says nothing of its agents"
    )
    station.start()
    scene.ended(trigger)
    assert scene.hops(trigger) == [("live", "failed", "runtime.gone"), ("resume", "answered", "")]
    scene.until(lambda: len(scene.replies(conversation)) == 1)


@pytest.mark.parametrize(
    ("point", "pastes", "reason"),
    [("host.begun", 0, "host.restarted"), ("host.pasted", 1, ""), ("host.done", 1, "host.restarted")],
)
def test_a_host_that_dies_never_pastes_twice_and_sends_what_waits_or_says_that_it_does_not_know(
    station: Station, point: str, pastes: int, reason: str
) -> None:
    scene = station.scene
    station.pane = station.desk.agent(station.name)  # it reads, and does not answer
    station.write()
    dying = station.start(GOFER_CRASH_AT=point)
    station.wait_for("idle")
    _, trigger = scene.say("hello")
    assert dying.wait(patience(20)) == EXIT_CODE
    station.start()
    scene.until(lambda: scene.hops(trigger) == [("live", "delivered", reason)], 20)
    until(lambda: len(station.desk.told(station.name)) == pastes)
    order = {"trigger": trigger, "hop": 1, "conversation": scene.job(trigger)["job"]["conversation_id"]}
    scene.post(order, "Here it is.")
    scene.ended(trigger)
    assert len(station.desk.told(station.name)) == pastes


def test_a_host_that_is_started_again_gets_what_it_had_taken_and_not_begun(scene: Scene) -> None:
    _, trigger = scene.say("quick, before you die")
    order = scene.order()
    asked = {"host": scene.heartbeat["host"], "wait": 0}
    assert scene.host.get("/runtimes/orders", params=asked).json()["orders"] == [], "it is under a lease"
    for expected in ([order["id"]], []):
        again = scene.host.get("/runtimes/orders", params={**asked, "fresh": True}).json()["orders"]
        assert [each["id"] for each in again] == expected, "once more, and not for ever"
    scene.post(order, "Here I am.")
    scene.ended(trigger)


def test_a_second_host_and_a_strangers_host_are_refused(station: Station, house: House) -> None:
    station.agent()
    path = station.write()
    station.start()
    station.wait_for("idle")
    assert station.start().wait(patience(20)) == 78
    station.says("A host with this name runs already")
    # As if on another machine: nothing of the first one's is in its way.
    path.write_text(path.read_text().replace(str(station.folder / "state"), str(station.folder / "other")))
    other = station.start()
    station.says("is announced by the host laptop.")
    other.kill()
    station.token = house.token(house.member("stranger", "operator"), "write", scopes={"runtimes": "write"})
    station.start()
    station.says("no such runtime of yours")


def test_two_members_have_a_runtime_each(house: House, desk: Terminals) -> None:
    """A host takes the orders of its own member alone, whatever host it claims to be."""
    scene = furnish(house)
    stranger = house.api(
        house.token(house.member("mallory", "operator"), "write", scopes={"runtimes": "write"})
    )
    _, trigger = scene.say("for one host only")
    taken = stranger.get("/runtimes/orders", params={"host": scene.heartbeat["host"], "wait": 0}).json()
    assert taken == {"orders": [], "over": []}
    order = scene.order()
    assert stranger.post(f"/runtimes/orders/{order['id']}", json={"status": "failed"}).status_code == 404
    scene.post(order, "Mine.")
    scene.ended(trigger)
    _, trigger = scene.say("stopped")
    order = scene.order()
    scene.owner.post(f"/jobs/{trigger}/cancel", json={})
    scene.ended(trigger, "cancelled")
    at_work = {"host": scene.heartbeat["host"], "working": f"{order['id']},999-1"}
    assert scene.host.get("/runtimes/orders", params=at_work).json()["over"] == [order["id"]]
    assert stranger.get("/runtimes/orders", params=at_work).json()["over"] == [], (
        "nothing of another's is told"
    )
    assert stranger.get("/runtimes/orders", params={"working": "x"}).status_code == 400
    scene.owner.delete(f"/runtimes/{scene.runtime}")


def test_an_agent_that_speaks_acp_answers_and_asks_people_for_permission(
    house: House, tmp_path: Path
) -> None:
    with acp_station(house, tmp_path) as station:
        scene = station.scene
        conversation, trigger = scene.say("permit cake")
        asked = scene.until(lambda: _open_question(scene, conversation))
        assert "The agent asks for permission" in asked["question"]
        answered = scene.owner.post(f"/questions/{asked['id']}/answer", json={"text": "Yes"})
        assert answered.status_code in (200, 202), answered.text
        scene.ended(trigger)
        scene.until(lambda: any("selected" in text for text in scene.replies(conversation)))
        assert scene.hops(trigger) == [("live", "answered", "")]
        # A host that is killed in the middle of a turn: the turn is lost with it, and the session goes on.
        _, trigger = scene.say("hang")
        scene.until(lambda: len(_log(tmp_path)) >= 3 and _log(tmp_path)[-1][0] == "prompt")
        station.processes[-1].kill()
        station.start()
        scene.until(lambda: scene.hops(trigger)[0] == ("live", "failed", "host.restarted"), 20)
        scene.until(lambda: scene.hops(trigger)[1:2] and _log(tmp_path)[-1][0] == "prompt")
        scene.owner.post(f"/jobs/{trigger}/cancel", json={})
        (prompt, *_) = [what for kind, what in _log(tmp_path) if kind == "prompt"]
        assert prompt.endswith("There is no second one."), "it is not told of tools that it does not have"
        assert "MCP" not in prompt


def test_a_turn_ends_when_its_trigger_is_stopped(house: House, tmp_path: Path) -> None:
    with acp_station(house, tmp_path) as station:
        scene = station.scene
        conversation, trigger = scene.say("hang")
        scene.until(lambda: any(kind == "prompt" for kind, _ in _log(tmp_path)))
        assert scene.owner.post(f"/jobs/{trigger}/cancel", json={}).status_code in (200, 202)
        scene.ended(trigger, "cancelled")
        scene.until(lambda: any(kind == "cancel" for kind, _ in _log(tmp_path)))
        station.wait_for("idle")
        said = scene.owner.post(f"/conversations/{conversation}/messages", json={"text": "say yes"}).json()
        scene.ended(said["job_id"])
        assert scene.hops(said["job_id"]) == [("live", "answered", "")], "it is free for what comes next"


def test_a_program_that_crashes_three_times_gets_no_new_session(house: House, tmp_path: Path) -> None:
    with acp_station(house, tmp_path) as station:
        _, trigger = station.scene.say("die")
        station.scene.ended(trigger, "dead")
        hops = station.scene.hops(trigger)
        assert [action for action, _, _ in hops] == ["live", "resume", "resume", "dead_letter"]
        assert hops[-1][2] == "runtime.crash_loop"
        assert station.scene.owner.get(f"/runtimes/{station.name}").json()["crashes"] == 3


@contextlib.contextmanager
def acp_station(house: House, folder: Path) -> Iterator[Station]:
    """A host with an agent that speaks ACP and waits."""
    scene = furnish(house, "coder", kind="acp")
    station = Station(scene, folder)
    command = [sys.executable, str(AGENT.with_name("acp_agent.py")), str(folder)]
    path = folder / "runtimes.toml"
    path.write_text(
        ACP_FILE.format(url=house.url, state=folder / "state", runtime=scene.runtime, command=command)
    )
    path.chmod(0o600)
    station.start()
    try:
        station.wait_for("idle")
        yield station
    finally:
        station.close()
        scene.owner.delete(f"/runtimes/{scene.runtime}")


def _log(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def _open_question(scene: Scene, conversation: str) -> Any:
    found = scene.owner.get("/questions").json()["questions"]
    return next((each for each in found if each["conversation_id"] == conversation), None)


def test_an_order_is_not_handed_to_a_host_that_has_died(scene: Scene) -> None:
    """What it waited with is still open at the server, which would give it the order for two minutes."""
    where = {"host": scene.heartbeat["host"], "wait": 25}
    with pytest.raises(httpx2.ReadTimeout):
        scene.host.get("/runtimes/orders", params=where, timeout=0.3)
    _, trigger = scene.say("who is there?")
    scene.until(lambda: scene.hops(trigger) == [("live", "queued", "")])
    time.sleep(LOOK_EVERY + 0.5)  # the server looks again in its name, if it still waits
    assert scene.hops(trigger) == [("live", "queued", "")]
    scene.post(scene.order(), "I am.")
    scene.ended(trigger)
