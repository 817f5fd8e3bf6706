"""The session protocol: programs that talk to an agent over a WebSocket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from protocols.session_client import SessionClient, session
from support.web_server import House


def refused(house: House, token: str, agent: str = "gofer", **query: Any) -> int:
    """The status with which nobody is let in; a problem document says why."""
    with pytest.raises(InvalidStatus) as caught, session(house, token, agent, **query):
        pass
    answer = caught.value.response
    assert answer.headers["content-type"] == "application/problem+json"
    told = json.loads(answer.body)
    assert told["status"] == answer.status_code
    assert told["detail"]
    return int(answer.status_code)


def test_a_client_that_knows_only_sending_and_receiving_holds_a_conversation(
    house: House, token: str
) -> None:
    with session(house, token) as client:
        hello = client.next()
        assert hello["type"] == "session.ack"
        assert hello["agentId"] == "gofer"
        assert {"agent_runtime_v1", "memory_v1"} <= set(hello["capabilities"])
        assert "one two" in client.say("$ echo one two")
        assert "three" in client.say("$ echo three")


def test_what_was_missed_comes_once_after_a_reconnect(house: House, token: str) -> None:
    with session(house, token) as client:
        key = client.next()["sessionKey"]
        client.say("$ echo first")
        seen = client.frames[-1]["seq"]
        client.send("chat.send", id="a-unique-message-0001", text="$ sleep 0.3; echo second")
        client.wait("agent.progress", status="accepted")
    with session(house, token, session=key, after=seen) as client:
        assert client.next()["sessionKey"] == key
        assert client.next()["status"] == "state_restored"
        assert "second" in client.wait("session.receive")["content"]
        # The acknowledgement may have been lost with the line: said again, it is the same message.
        client.send("chat.send", id="a-unique-message-0001", text="$ sleep 0.3; echo second")
        client.wait("agent.progress", status="accepted")
        assert "third" in client.say("$ echo third")
        assert [frame["seq"] for frame in client.frames if frame["type"] == "session.receive"] == [
            seen + 1,
            seen + 2,
        ]


def test_a_session_is_its_members_alone(house: House, token: str) -> None:
    with session(house, token) as client:
        key = client.next()["sessionKey"]
        client.say("$ echo mine")
    other = house.token(house.member("otto", "operator", password=""), "write")
    with session(house, other, session=key) as client:
        client.next()
        assert client.ask("session.history")["messages"] == []


def test_nobody_enters_without_the_right(house: House, token: str) -> None:
    assert refused(house, "") == 401
    assert refused(house, "gofer_forged") == 401
    assert refused(house, "x" * 500) == 401
    assert refused(house, token, agent="nobody") == 404
    assert refused(house, token, session="has spaces") == 400
    assert refused(house, token, after="-1") == 400
    viewer = house.token(house.member("vera", "viewer", password=""), "read")
    assert refused(house, viewer) == 403
    reader = house.token(house.owner(), "admin", scopes={"jobs": "read"})
    assert refused(house, reader) == 403


@pytest.mark.parametrize("name", ["session", "sessionId", "session_id", "sessionKey", "session-key"])
def test_a_session_is_named_in_each_way_that_clients_do(house: House, token: str, name: str) -> None:
    named: dict[str, Any] = {name: f"by-{name}"}
    with session(house, token, **named) as client:
        assert client.next()["sessionKey"] == f"by-{name}"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("not json", "invalid_envelope"),
        ("[]", "invalid_envelope"),
        ('{"type": 3}', "invalid_envelope"),
        ('{"type": "chat.send", "id": {}}', "invalid_envelope"),
        ('{"type": "chat.send"}', "missing_content"),
        ('{"type": "chat.send", "content": 7}', "invalid_envelope"),
        ('{"type": "chat.send", "content": " "}', "missing_content"),
        ('{"type": "no.such.thing"}', "unsupported_message_type"),
        ('{"type": "agent.control", "action": "fly"}', "unsupported_message_type"),
        ('{"type": "session.history", "limit": -4}', "invalid_envelope"),
        ('{"type": "memory.query", "kind": "all"}', "invalid_envelope"),
        (json.dumps({"type": "chat.send", "content": "x" * (64 * 1024 + 1)}), "invalid_envelope"),
        (b"\x00\x01", "invalid_envelope"),
    ],
)
def test_bad_frames_get_an_error_and_the_connection_goes_on(
    house: House, token: str, sent: str | bytes, code: str
) -> None:
    with session(house, token) as client:
        client.next()
        client.connection.send(sent)
        assert client.next()["code"] == code
        assert client.ask("ping")["type"] == "pong"


def flood(client: SessionClient) -> None:
    for _ in range(10_000):
        client.send("ping")
    while True:
        client.next()


def test_a_client_that_floods_is_cut_off_alone(house: House, token: str) -> None:
    with session(house, token) as calm, session(house, token) as wild:
        calm.next()
        with pytest.raises(ConnectionClosed) as closed:
            flood(wild)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4429
        assert calm.ask("ping")["type"] == "pong"


def test_two_clients_in_one_session_hear_the_same(house: House, token: str) -> None:
    with (
        session(house, token, session="shared-by-two") as one,
        session(house, token, session="shared-by-two") as two,
    ):
        one.next(), two.next()
        assert "both" in one.say("$ echo both")
        assert "both" in two.wait("session.receive")["content"]


def test_runs_are_started_listed_and_cancelled(house: House, token: str) -> None:
    with session(house, token) as client:
        client.next()
        ack = client.ask("agent.run.start", payload={"content": "$ echo begun; sleep 60"})
        assert ack["type"] == "agent.run.ack"
        # Its last letters may be held back for a while: a secret could begin with them.
        client.until(lambda frame: frame["type"] == "agent.run.event" and "beg" in frame["payload"]["text"])
        state = client.ask("agent.run.status", run_id=ack["run_id"])
        assert state["state"] == "running"
        assert client.ask("agent.status")["activeTasks"] == 1
        client.ask("agent.run.cancel", run_id=ack["run_id"])
        assert client.wait("session.receive")["content"]
        assert client.ask("agent.run.status", run_id=ack["run_id"])["state"] == "cancelled"
        assert client.ask("agent.run.list")["run_id"] == ack["run_id"]
        assert client.ask("agent.run.events", run_id=ack["run_id"])["event_type"]
        assert client.ask("agent.run.status", run_id="999999")["type"] == "error"


def test_a_client_that_asks_for_it_is_told_every_step(house: House, token: str) -> None:
    with session(house, token) as client:
        client.next()
        client.ask("agent.control", action="debug.subscribe")
        client.send("chat.send", content="$ echo seen")
        for kind in ("run.started", "turn.finished", "run.answered"):
            client.wait("debug.event", event_type=kind)


def test_a_tool_is_told_once_when_it_is_called_and_once_when_it_has_ended(house: House, token: str) -> None:
    with session(house, token) as client:
        client.send("chat.send", text="$ sleep 0.5; echo one")
        client.wait("tool.event", status="running")
        client.send("chat.send", text="$ echo two")
        client.until(lambda frame: "two" in frame.get("content", ""))
        told = [(each["callId"], each["status"]) for each in client.frames if each["type"] == "tool.event"]
        assert len({call for call, _ in told}) == 2
        assert len(told) == len(set(told))


def test_a_run_of_another_session_does_not_exist(house: House, token: str) -> None:
    with session(house, token) as one, session(house, token) as two:
        one.next(), two.next()
        ack = one.ask("agent.run.start", content="$ echo mine")
        one.wait("session.receive")
        assert two.ask("agent.run.cancel", run_id=ack["run_id"])["type"] == "error"


def test_history_memory_and_agents(house: House, token: str) -> None:
    with session(house, token, session="a-long-memory") as client:
        client.next()
        client.say("$ echo the parrot is called Polly")
        said = client.ask("session.history", limit=10)["messages"]
        assert [message["role"] for message in said] == ["user", "assistant"]
        found = client.ask("memory.recall")["items"]
        assert [item["state"] for item in found if item["kind"] == "entry"] == ["active", "active"]
        assert "Polly" in client.ask("memory.query", topic="parrot")["items"][0]["content"]
        again = client.ask("memory.query", memoryId=found[0]["id"])["items"]
        assert again[0]["id"] == found[0]["id"]
        assert client.ask("memory.query", memoryId="mem_nobody.1")["items"] == []
        agents = client.ask("agent.list")["agents"]
        assert [agent["id"] for agent in agents] == ["gofer"]
        assert client.ask("agent.get")["id"] == "gofer"
        reset = client.ask("session.reset")
        assert reset["sessionKey"] == "a-long-memory"
        client.wait("session.receive")
        states = {item["state"] for item in client.ask("memory.recall")["items"] if item["kind"] == "entry"}
        assert "tombstone" in states
        last = client.ask("session.restore")
        assert last["found"]
        assert last["session"]["session_key"] == "a-long-memory"
        fresh = client.ask("session.new")
        assert fresh["sessionKey"] != "a-long-memory"
        assert client.ask("session.history")["messages"] == []
        assert "anew" in client.say("$ echo anew")


def test_a_page_of_another_site_cannot_connect(house: House, token: str) -> None:
    assert refused(house, token, headers={"Origin": "https://evil.example"}) == 403


def test_a_goal_is_planned_followed_and_reported(house: House, token: str) -> None:
    with session(house, token) as client:
        client.next()
        assert client.ask("agent.control", action="goal")["code"] == "missing_content"
        client.ask("agent.control", action="goal", goal="$ echo one\n$ echo two")
        client.until(lambda frame: frame["type"] == "agent.plan" and len(frame["tasks"]) == 2)
        client.wait("agent.status", status="done")
        client.until(lambda frame: frame["type"] == "agent.plan" and frame["state"] == "done")
        plan = client.ask("agent.control", action="plan")
        assert [task["status"] for task in plan["tasks"]] == ["done", "done"]
        assert client.ask("agent.status")["lastGoal"]
        assert not [frame for frame in client.frames if frame["type"] == "tool.event"], "no card of a task"
        assert client.ask("agent.control", action="pause")["type"] == "error"


def test_a_paused_run_stops_after_its_step_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined")
    token = house.token(house.owner())
    with session(house, token) as client:
        key = client.next()["sessionKey"]
        assert client.ask("agent.control", action="pause")["code"] == "execution_failed"
        # The last letters of what a command has printed so far may be held back, as the beginning of a secret.
        step = f"$ echo begun, at work | tee -a steps; until [ -e {tmp_path}/paused ]; do sleep 0.1; done"
        run = client.ask("agent.run.start", content=step)["run_id"]
        client.until(lambda frame: frame["type"] == "agent.run.event" and "begun" in frame["payload"]["text"])
        assert client.ask("agent.run.pause", run_id=run)["state"] == "paused"
        (tmp_path / "paused").touch()
        client.until(lambda frame: frame["type"] == "tool.event" and frame["exitCode"] == 0)
        assert client.ask("agent.control", action="state")["phase"] == "paused"
        client.ask("chat.send", content="$ echo meanwhile $(wc -l < steps)")
    house.close()
    house = House(folder, sandbox="unconfined")
    with session(house, token, session=key, after=0) as client:
        client.next()
        assert client.ask("agent.run.status", run_id=run)["state"] == "paused"
        assert client.ask("agent.run.pause", run_id=run)["state"] == "paused"
        assert client.frames[-1]["seq"] == 0, "nothing was answered"
        assert client.ask("agent.control", action="resume")["status"] == "resumed"
        # What was said meanwhile is heard by the run that goes on, and no step is done twice.
        assert "meanwhile 1" in client.wait("session.receive")["content"]
        assert client.ask("agent.run.resume", run_id=run)["type"] == "error"
        client.ask("agent.run.start", content="$ echo begun, at work; sleep 30")
        client.until(lambda frame: frame["type"] == "agent.run.event" and "begun" in frame["payload"]["text"])
        assert client.ask("agent.control", action="pause")["status"] == "paused"
        assert client.ask("agent.control", action="cancel")["status"] == "cancelled"
        client.wait("session.receive")
        assert client.ask("agent.run.status")["state"] == "cancelled"
    house.close()


def test_saturation_is_told_when_it_comes_on_a_reconnect_and_when_it_is_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined", agent_tasks=1, max_tasks=1)
    token = house.token(house.owner())
    narrow = house.token(house.owner(), scopes={"messages": "write"})
    with session(house, token) as client, session(house, token) as neighbour:
        key = client.next()["sessionKey"]
        for each in (client, neighbour):
            each.ask("agent.control", action="goal", goal="$ sleep 20; echo slept")
        told = client.wait("agent.progress", phase="backpressure", status="saturated")
        assert (told["active"], told["queued"] > 0) == (1, True)
        with session(house, narrow, session=key) as other:
            back = other.wait("agent.progress", phase="reconnect")
            assert (back["status"], back["queued"]) == ("backpressure_resumed", told["queued"])
            assert "scopes" in other.ask("agent.control", action="clear_saturation")["message"]
        cleared = client.ask("agent.control", action="clear_saturation")
        assert (cleared["status"], cleared["total"]) == ("saturation_cleared", 0)
        client.wait("agent.progress", phase="backpressure", status="clear")
        for each in (client, neighbour):
            each.ask("agent.control", action="cancel")
    house.close()


PARTS: dict[str, tuple[str, dict[str, str]]] = {
    "agent_runtime_v1": ("agent.run.list", {}),
    "memory_v1": ("memory.recall", {}),
    "workers_v1": ("agent.control", {"action": "clear_saturation"}),
}
"""A message of each part that can be switched off."""


def test_capabilities_are_the_parts_that_are_switched_on(house: House, token: str, tmp_path: Path) -> None:
    with session(house, token) as client:
        assert client.next()["capabilities"] == list(PARTS)
        for message in PARTS.values():
            assert client.ask(message[0], **message[1])["type"] != "error"
    off = House(tmp_path / "data", agent_runtime_v1=False, memory_v1=False, workers_v1=False)
    try:
        (tmp_path / "data" / "agents").mkdir(exist_ok=True)
        (tmp_path / "data" / "agents" / "beating.toml").write_text("[heartbeat]\nenabled = true\n")
        with session(off, off.token(off.owner())) as client:
            assert client.next()["capabilities"] == []
            assert client.ask("connect")["capabilities"] == []
            for flag, message in PARTS.items():
                refused = client.ask(message[0], **message[1])
                assert (refused["type"], refused["code"]) == ("error", "unsupported_message_type")
                assert flag in refused["message"]
            assert client.say("hello")  # and what every client knows still works
        with session(off, off.token(off.owner()), agent="beating") as client:
            assert client.next()["capabilities"] == ["heartbeat"]
            assert client.ask("agent.heartbeat")["phase"] == "heartbeat"
    finally:
        off.close()
