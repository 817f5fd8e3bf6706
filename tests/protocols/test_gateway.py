"""OpenClaw's gateway protocol: programs that were written for it talk to Gofer's agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gofer.jobs.worker import CANCEL_GRACE
from gofer.store.tables import jobs
from gofer.web.client_socket import Allowances
from gofer.web.protocols import gateway as door
from protocols.gateway_client import GatewayClient, GatewayRefused, gateway, hello_params, line, text_of
from protocols.session_client import session
from support.web_server import House


def test_a_client_holds_a_conversation(house: House, token: str) -> None:
    with gateway(house, token) as client:
        assert client.hello["protocol"] == 4
        assert client.hello["auth"]["role"] == "operator"
        assert "chat.send" in client.hello["features"]["methods"]
        answer = client.ask(
            "chat.send", sessionKey="agent:gofer:talk", message="$ echo one two", idempotencyKey="talk-1"
        )
        assert answer == {"runId": "talk-1", "status": "started"}
        assert "one two" in text_of(client.event("chat", runId="talk-1", state="final"))
        assert "three" in client.say("$ echo three", "talk-2", "agent:gofer:talk")


def closed_with(client: GatewayClient) -> int:
    """The code that the server closes a connection with."""
    with pytest.raises(ConnectionClosed) as closed:
        client.until(lambda frame: False)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def turned_away(
    house: House, token: str, headers: dict[str, str] | None = None, **params: Any
) -> tuple[str, int]:
    """Why a client is not let in, and the code it is closed with."""
    with line(house.url, headers) as client:
        error = client.refused("connect", **hello_params(token, **params))
        return error.detail or error.code, closed_with(client)


def test_versions_three_and_four_are_spoken(house: House, token: str) -> None:
    with gateway(house, token, minProtocol=3, maxProtocol=3) as client:
        assert client.hello["protocol"] == 3
    with gateway(house, token, minProtocol=3, maxProtocol=9) as client:
        assert client.hello["protocol"] == 4
    assert turned_away(house, token, minProtocol=5, maxProtocol=6) == ("PROTOCOL_MISMATCH", 1002)
    with line(house.url) as client:
        error = client.refused("connect", **hello_params(token, minProtocol=1, maxProtocol=2))
        assert error.error["details"]["expectedProtocol"] == 4


def test_nobody_enters_without_the_right(house: House, token: str) -> None:
    assert turned_away(house, "") == ("AUTH_TOKEN_MISSING", 1008)
    assert turned_away(house, "gofer_forged") == ("AUTH_TOKEN_MISMATCH", 1008)
    assert turned_away(house, "x" * 500) == ("AUTH_TOKEN_MISMATCH", 1008)
    narrow = house.token(house.owner(), "admin", scopes={"jobs": "read"})
    assert turned_away(house, narrow) == ("AUTH_SCOPE_MISMATCH", 1008)
    assert turned_away(house, token, role="node") == ("INVALID_REQUEST", 1008)
    with gateway(house, token) as client:
        assert client.ask("health")["ok"] is True


def test_pages_of_other_sites_do_not_enter(house: House, token: str) -> None:
    with pytest.raises(InvalidStatus), line(house.url, {"Origin": "https://elsewhere.example"}):
        pass
    with line(house.url, {"Origin": house.url}) as client:
        assert client.ask("connect", **hello_params(token))["type"] == "hello-ok"


def test_a_browser_that_is_signed_in_needs_no_token(house: House) -> None:
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    headers = {"Origin": house.url, "Cookie": f"gofer_session={browser.cookie}"}
    with line(house.url, headers) as client:
        assert client.ask("connect", **hello_params(""))["type"] == "hello-ok"
        assert client.ask("health")["ok"] is True


def test_scopes_are_what_the_member_may_and_the_client_asked_for(house: House, token: str) -> None:
    viewer = house.token(house.member("victor", "viewer", password=""), "read")
    with gateway(house, viewer) as client:
        assert client.hello["auth"]["scopes"] == ["operator.read"]
        assert client.ask("agents.list")["defaultId"] == "gofer"
        error = client.refused("chat.send", sessionKey="main", message="hello", idempotencyKey="k")
        assert error.code == "FORBIDDEN"
        assert "operator.write" in str(error)
    with gateway(house, token, scopes=[]) as client:
        assert client.refused("health").code == "FORBIDDEN"
    with gateway(house, token, scopes=["operator.read"]) as client:
        assert client.refused("sessions.delete", key="main").code == "FORBIDDEN"
    # The reference client asks for admin alone; it gets what the token may.
    operator = house.token(house.member("oscar", "operator", password=""), "write")
    with gateway(house, operator, scopes=["operator.admin"]) as client:
        assert client.hello["auth"]["scopes"] == ["operator.read", "operator.write", "operator.approvals"]


def test_a_token_that_is_revoked_ends_the_connection(house: House) -> None:
    from gofer.web.auth.sessions import new_token, revoke_token

    token_id, value = house.write(new_token, member_id=house.owner(), name="brief", scope="admin")
    with gateway(house, value) as client:
        client.ask("health")
        house.write(revoke_token, token_id=token_id, member_id=None)
        client.send("health", {})
        assert closed_with(client) == 1008


@pytest.mark.parametrize(
    "first",
    [
        "not json",
        "[]",
        "7",
        b"\x00\x01",
        json.dumps({"type": "req", "id": "1", "method": "health"}),
        json.dumps({"type": "req", "id": "1", "method": "connect", "params": []}),
        json.dumps({"type": "req", "id": "1", "method": "connect", "params": {"minProtocol": "4"}}),
        json.dumps({"type": "req", "id": "1", "method": "connect", "extra": 1}),
        json.dumps({"type": "event", "event": "tick"}),
    ],
)
def test_anything_else_than_a_good_connect_is_refused_and_closed(house: House, first: str | bytes) -> None:
    with line(house.url) as client:
        client.connection.send(first)
        answer = client.next()
        assert answer["error"]["code"] == "INVALID_REQUEST"
        assert closed_with(client) == 1008


def test_a_large_first_frame_is_not_read(house: House, token: str) -> None:
    with line(house.url) as client:
        client.connection.send(json.dumps({"type": "req", "id": "1", "method": "x" * (64 * 1024 + 1)}))
        assert closed_with(client) == 1009


def test_a_handshake_that_never_comes_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_TIMEOUT", 0.2)
    with line(house.url) as client:
        assert closed_with(client) == 1008


def test_strangers_are_bounded_and_members_are_not(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_STRANGERS_PER_ADDRESS", 2)
    with line(house.url), gateway(house, token), line(house.url):
        with pytest.raises(InvalidStatus) as refused, line(house.url):
            pass
        assert refused.value.response.status_code == 503


def test_wrong_tokens_are_told_to_wait_and_right_ones_are_not(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {turned_away(house, "gofer_wrong")[0] for _ in range(25)}
    assert "AUTH_RATE_LIMITED" in seen
    with gateway(house, token) as client:
        assert client.ask("health")["ok"] is True


@pytest.mark.parametrize(
    "sent",
    [
        "not json",
        "[]",
        b"\x00",
        '{"type": "req"}',
        '{"type": "req", "id": "x", "method": "health", "unknown": 1}',
        '{"type": "res", "id": "x", "ok": true}',
        '{"type": "req", "id": {}, "method": "health"}',
    ],
)
def test_bad_frames_get_an_error_and_the_connection_goes_on(
    house: House, token: str, sent: str | bytes
) -> None:
    with gateway(house, token) as client:
        client.connection.send(sent)
        answer = client.until(lambda frame: frame["type"] == "res")
        assert answer["error"]["code"] == "INVALID_REQUEST"
        assert client.ask("health")["ok"] is True


def test_a_method_that_is_not_there_is_refused_by_its_name(house: House, token: str) -> None:
    with gateway(house, token) as client:
        error = client.refused("wizard.start")
        assert error.code == "INVALID_REQUEST"
        assert "wizard.start" in str(error)
        assert client.refused("connect", **hello_params(token)).code == "INVALID_REQUEST"


def flood(client: GatewayClient) -> None:
    for _ in range(10_000):
        client.send("health", {})
    while True:
        client.next()


def test_a_client_that_floods_is_cut_off_alone(house: House, token: str) -> None:
    with gateway(house, token) as calm, gateway(house, token) as wild:
        with pytest.raises(ConnectionClosed):
            flood(wild)
        assert calm.ask("health")["ok"] is True


def test_one_token_has_a_rate_over_all_its_connections(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, spend = Allowances(3, 0), Allowances.spend
    monkeypatch.setattr(Allowances, "spend", lambda _, who: who == token or spend(few, who))
    other = house.token(house.owner())
    with gateway(house, other) as one, gateway(house, other) as two, gateway(house, token) as calm:
        one.ask("health"), two.ask("health"), one.ask("health")
        error = two.refused("health")
        assert (error.code, error.error["retryable"]) == ("UNAVAILABLE", True)
        assert calm.ask("health")["ok"] is True


def test_what_is_said_again_is_the_same_run(house: House, token: str) -> None:
    said = {
        "sessionKey": "agent:gofer:twice",
        "message": "$ sleep 0.5; echo once",
        "idempotencyKey": "same/1",
    }
    with gateway(house, token) as client:
        assert client.ask("chat.send", **said)["status"] == "started"
        assert client.ask("chat.send", **said)["status"] == "in_flight"
        client.event("chat", runId="same/1", state="final")
        assert client.ask("chat.send", **said) == {"runId": "same/1", "status": "ok"}
    with gateway(house, token) as client:
        assert client.ask("chat.send", **said) == {"runId": "same/1", "status": "ok"}
        spoken = client.ask("chat.history", sessionKey="agent:gofer:twice")["messages"]
        assert [each["role"] for each in spoken] == ["user", "assistant"]
        elsewhere = client.refused("chat.send", **{**said, "sessionKey": "agent:gofer:other"})
        assert "another session" in str(elsewhere)


def test_tools_are_told_as_they_run(house: House, token: str) -> None:
    with gateway(house, token) as client:
        client.ask(
            "chat.send", sessionKey="main", message="$ echo begun; sleep 0.4", idempotencyKey="tools-1"
        )
        client.event("chat", runId="tools-1", state="final")
        told = [frame["payload"] for frame in client.frames if frame.get("event") == "agent"]
        phases = [(each["stream"], each["data"].get("phase")) for each in told]
        assert ("lifecycle", "start") in phases
        assert phases.index(("tool", "start")) < phases.index(("tool", "result"))
        result = next(each["data"] for each in told if each["data"].get("phase") == "result")
        assert "begun" in result["result"]
        assert {each["runId"] for each in told} == {"tools-1"}


async def _tell(house: House, conversation_id: str, job_id: int, *parts: str) -> None:
    house.platform.live.tell(conversation_id, job_id, "turn.started", {})
    for part in parts:
        house.platform.live.tell(conversation_id, job_id, "text.delta", {"text": part})


def test_words_are_told_as_they_come(house: House, token: str) -> None:
    with gateway(house, token) as client:
        key = "agent:gofer:words"
        client.ask("chat.send", sessionKey=key, message="$ echo begun; sleep 60", idempotencyKey="words-1")
        client.until(lambda frame: "begun" in json.dumps(frame))
        here = client.ask("chat.history", sessionKey=key)["sessionId"]
        of_session = select(jobs.c.id).where(jobs.c.conversation_id == here)
        job_id = house.read(lambda store: store.execute(of_session).scalar_one())
        house.run(_tell(house, here, job_id, "half", "way"))
        first = client.event("chat", runId="words-1", state="delta")
        said = first["deltaText"]
        while said != "halfway":
            said += client.event("chat", runId="words-1", state="delta")["deltaText"]
        assert client.event("agent", runId="words-1", stream="assistant")["data"]["delta"] in (
            "half",
            "halfway",
        )
        client.ask("chat.abort", sessionKey=key)


def test_a_run_is_aborted(house: House, token: str) -> None:
    with gateway(house, token) as client:
        key = "agent:gofer:long"
        client.ask("chat.send", sessionKey=key, message="$ echo begun; sleep 600", idempotencyKey="long-1")
        client.until(lambda frame: "begun" in json.dumps(frame))
        answer = client.ask("chat.abort", sessionKey=key, runId="long-1")
        assert answer == {"ok": True, "aborted": True, "runIds": ["long-1"]}
        client.event("chat", runId="long-1", state="aborted")
        assert client.ask("agent.wait", runId="long-1")["stopReason"] == "aborted"
        assert client.ask("chat.abort", sessionKey=key)["aborted"] is False
        assert "after" in client.say("$ echo after", "long-2", key)


@pytest.mark.parametrize("grace", [CANCEL_GRACE, 0.0])
def test_what_follows_an_abort_does_not_wait_for_it(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    # Without any, a run is cut off before it can end its command: as on a machine that is busy for seconds.
    monkeypatch.setattr("gofer.jobs.worker.CANCEL_GRACE", grace)
    with gateway(house, token) as client:
        key, run, after = f"agent:gofer:short-{grace}", f"short-{grace}", f"after-{grace}"
        for number in range(2):  # the first opens the shell, and is stopped on the way there
            message = {"message": "$ echo begun; sleep 600", "idempotencyKey": f"{run}-{number}"}
            client.ask("chat.send", sessionKey=key, **message)
            if number or not grace:
                client.until(lambda frame: frame.get("event") == "agent" and "begun" in json.dumps(frame))
            client.ask("chat.abort", sessionKey=key)
            assert "after" in client.say("$ echo after", f"{after}-{number}", key)


def test_waiting_for_a_run_holds_nothing_else_up(house: House, token: str) -> None:
    with gateway(house, token) as client:
        client.ask("chat.send", sessionKey="main", message="$ sleep 0.7", idempotencyKey="slow-1")
        waiting = client.send("agent.wait", {"runId": "slow-1", "timeoutMs": 60_000})
        assert client.ask("agent.wait", runId="slow-1", timeoutMs=0)["status"] == "timeout"
        assert client.ask("health")["ok"] is True
        done = client.response(waiting)
        assert done["status"] == "ok"
        assert done["endedAt"] >= done["startedAt"]
        assert "unknown run" in str(client.refused("agent.wait", runId="never"))


def test_an_agent_answers_twice_under_one_id(house: House, token: str) -> None:
    with gateway(house, token) as client:
        asked = client.send(
            "agent", {"message": "$ echo forty-two", "agentId": "gofer", "idempotencyKey": "a-1"}
        )
        assert client.response(asked)["status"] == "accepted"
        done = client.response(asked)
        assert done["status"] == "ok"
        assert "forty-two" in done["result"]["payloads"][0]["text"]


def test_commands_are_answered_under_their_run(house: House, token: str) -> None:
    with gateway(house, token) as client:
        assert "/new" in client.say("/help", "command-1", "agent:gofer:commands")
        assert client.ask("agent.wait", runId="command-1")["status"] == "ok"


def test_sessions_are_listed_reset_and_deleted(house: House, token: str) -> None:
    with gateway(house, token) as client:
        key = "agent:gofer:managed"
        client.say("$ echo first", "managed-1", key)
        listed = client.ask("sessions.list", search="managed")["sessions"]
        assert [row["key"] for row in listed] == [key]
        assert client.ask("sessions.resolve", key=key)["ok"] is True
        preview = client.ask("sessions.preview", keys=[key, "agent:gofer:never"])["previews"]
        assert [each["status"] for each in preview] == ["ok", "missing"]
        assert client.ask("sessions.reset", key=key)["ok"] is True
        assert client.event("sessions.changed", reason="reset")["sessionKey"] == key
        assert client.ask("sessions.patch", key=key, model="default")["ok"] is True
        assert client.refused("sessions.patch", key=key, label="mine").code == "INVALID_REQUEST"
        assert client.ask("sessions.delete", key=key)["deleted"] is True
        assert client.ask("sessions.delete", key=key)["deleted"] is False
        assert client.ask("chat.history", sessionKey=key)["messages"] == []


def test_files_come_with_a_message(house: House, token: str) -> None:
    import base64

    content = base64.b64encode(b"a,b\n" * 200_000).decode()
    files = [{"fileName": "table.csv", "mimeType": "text/csv", "content": content}]
    with gateway(house, token) as client:
        said = {"sessionKey": "agent:gofer:files", "message": "look at it", "idempotencyKey": "files-1"}
        assert client.ask("chat.send", **said, attachments=files)["status"] == "started"
        client.event("chat", runId="files-1", state="final")
        bad = {**said, "idempotencyKey": "files-2", "attachments": [{"content": "no base64!"}]}
        assert "base64" in str(client.refused("chat.send", **bad))


def test_both_doors_show_one_conversation(house: House, token: str) -> None:
    key = "agent:gofer:both-doors"
    with gateway(house, token) as client:
        client.say("$ echo begun at the gateway", "doors-1", key)
        client.ask("sessions.messages.subscribe", key=key)
        with session(house, token, session="both-doors") as other:
            assert other.next()["sessionKey"] == "both-doors"
            client.say("$ echo through the gateway", "doors-2", key)
            assert "through the gateway" in other.wait("session.receive")["content"]
            other.send("chat.send", content="$ echo through the session")
            told = client.until(
                lambda frame: (
                    frame.get("event") == "session.message" and "through the session" in json.dumps(frame)
                )
            )
            assert told["payload"]["sessionKey"] == key
            assert "through the session" in other.wait("session.receive")["content"]


def test_two_clients_on_one_session_hear_the_same(house: House, token: str) -> None:
    with gateway(house, token) as one, gateway(house, token) as two:
        one.say("$ echo begin", "pair-1", "agent:gofer:pair")
        two.ask("chat.history", sessionKey="agent:gofer:pair")
        one.say("$ echo to both", "pair-2", "agent:gofer:pair")
        assert "to both" in text_of(two.event("chat", runId="pair-2", state="final"))


def test_a_session_is_its_members_alone(house: House, token: str) -> None:
    with gateway(house, token) as client:
        client.say("$ echo mine", "mine-1", "agent:gofer:private")
        room = client.ask("chat.history", sessionKey="agent:gofer:private")["sessionId"]
    other = house.token(house.member("olga", "operator", password=""), "write")
    with gateway(house, other) as client:
        for key in ("agent:gofer:private", room):
            assert client.ask("chat.history", sessionKey=key)["messages"] == []
        assert "unknown run" in str(client.refused("agent.wait", runId="mine-1"))
        assert client.ask("sessions.list")["sessions"] == []


def test_a_token_of_an_agent_reaches_that_one_alone(house: House) -> None:
    bound = house.token(house.owner(), "write", agent="gofer")
    with gateway(house, bound) as client:
        assert "operator.admin" not in client.hello["auth"]["scopes"]
        assert [each["id"] for each in client.ask("agents.list")["agents"]] == ["gofer"]


def test_a_client_that_goes_in_the_middle_finds_the_answer(house: House, token: str) -> None:
    key = "agent:gofer:gone"
    with gateway(house, token) as client:
        client.ask("chat.send", sessionKey=key, message="$ sleep 0.5; echo late", idempotencyKey="gone-1")
    with gateway(house, token) as client:
        spoken = client.ask("chat.history", sessionKey=key)
        assert spoken.get("inFlightRun", {"runId": "gone-1"})["runId"] == "gone-1"
        assert client.ask("agent.wait", runId="gone-1")["status"] == "ok"
        assert "late" in json.dumps(client.ask("chat.history", sessionKey=key)["messages"])


def test_errors_are_refusals_of_the_request_alone(house: House, token: str) -> None:
    with gateway(house, token) as client:
        for params in (
            {"sessionKey": "main", "message": " ", "idempotencyKey": "k"},
            {"sessionKey": "has spaces", "message": "x", "idempotencyKey": "k"},
            {"sessionKey": "agent:nobody:main", "message": "x", "idempotencyKey": "k"},
            {"sessionKey": "main", "message": "x", "idempotencyKey": ""},
            {"sessionKey": "main", "message": "x" * 100_001, "idempotencyKey": "k"},
        ):
            with pytest.raises(GatewayRefused) as refused:
                client.ask("chat.send", **params)
            assert refused.value.code == "INVALID_REQUEST"
