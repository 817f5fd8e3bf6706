"""What clients of the gateway protocol are told beside their sessions, and who of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from gofer.errors import StoreUnavailable
from gofer.store import events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.web.protocols import gateway_events
from protocols.gateway_client import GatewayClient, gateway
from support.web_server import House


def named(name: str) -> dict[str, Any]:
    return {
        "client": {"id": "test", "displayName": name, "version": "1", "platform": "linux", "mode": "test"}
    }


def seen(client: GatewayClient, event: str) -> list[Any]:
    """The payloads of the events of a kind that came before the answer to a request of now."""
    client.ask("status")
    return [frame["payload"] for frame in client.frames if frame.get("event") == event]


def hosts(payload: Any) -> set[str]:
    return {entry["host"] for entry in payload["presence"]}


def test_clients_are_told_who_is_there(house: House, token: str) -> None:
    operator = house.token(house.member("pia", "operator", password=""), "write")
    with gateway(house, token, **named("first")) as owner, gateway(house, operator, **named("other")) as pia:
        assert "first" in hosts(owner.hello["snapshot"])
        with gateway(house, token, **named("second")) as second:
            frame = owner.until(
                lambda frame: frame.get("event") == "presence" and "second" in hosts(frame["payload"])
            )
            assert hosts(frame["payload"]) >= {"first", "second", "other"}
            assert frame["stateVersion"]["presence"] > owner.hello["snapshot"]["stateVersion"]["presence"]
            assert {each["host"] for each in second.ask("system-presence")} >= {"first", "second"}
        owner.until(
            lambda frame: frame.get("event") == "presence" and "second" not in hosts(frame["payload"])
        )
        # A member sees its own clients alone.
        assert {each["host"] for each in pia.ask("system-presence")} == {"other"}
        assert all(hosts(payload) == {"other"} for payload in seen(pia, "presence"))


def test_clients_hear_ticks_in_the_order_of_everything_else(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_events, "TICK_INTERVAL", 0.0)
    with gateway(house, token, scopes=[]) as mute, gateway(house, token) as owner:
        for client in (mute, owner):
            assert client.event("tick")["ts"] <= client.event("tick")["ts"]
        assert owner.ask("health")["ok"] is True


def test_who_may_read_nothing_is_told_nothing(house: House, token: str) -> None:
    with gateway(house, token, scopes=[]) as mute, gateway(house, token) as owner:
        owner.event("presence")
        owner.ask("status")
        assert mute.refused("status").code == "FORBIDDEN"
        assert {frame.get("event") for frame in mute.frames} <= {"connect.challenge", "tick", None}


def test_clients_are_told_what_schedules_do(house: House, token: str) -> None:
    bound = house.token(house.owner(), "write", agent="gofer")
    with gateway(house, token) as owner, gateway(house, bound) as narrow:
        when = {"kind": "cron", "expr": "0 4 * * *"}
        said = {"kind": "agentTurn", "message": "hello"}
        made = owner.ask("cron.add", name="daily", schedule=when, payload=said)
        assert owner.event("cron", jobId=made["id"])["action"] == "added"
        run = owner.ask("cron.run", id=made["id"])["runId"]
        assert owner.event("cron", jobId=made["id"], action="started")["runId"] == run
        assert owner.event("cron", jobId=made["id"], action="finished")["status"] == "ok"
        # What the command line does is told as well.
        changed = house.api(token).patch(f"/schedules/{made['id']}", json={"enabled": False})
        assert changed.status_code == 200, changed.text
        owner.event("cron", jobId=made["id"], action="updated")
        assert house.api(token).delete(f"/schedules/{made['id']}").status_code == 200
        owner.event("cron", jobId=made["id"], action="removed")
        assert seen(narrow, "cron") == []


def test_owners_are_told_of_heartbeats_and_others_of_those_in_their_sessions(
    house: House, token: str
) -> None:
    operator = house.token(house.member("pim", "operator", password=""), "write")
    data = {"agent": "gofer", "code": "goal.blocked", "subject": "secret words"}

    def nudge(connection: Any, place: str | None) -> None:
        events.record(connection, "heartbeat.nudged", FIRST_WORKSPACE, conversation_id=place, data=data)

    with gateway(house, token) as owner, gateway(house, operator) as pim:
        pim.say("hello", "heartbeat-test-1", "agent:gofer:beats")
        place = pim.ask("chat.history", sessionKey="agent:gofer:beats")["sessionId"]
        house.write(nudge, place=None)
        assert owner.event("heartbeat")["status"] == "sent"
        assert seen(pim, "heartbeat") == []
        house.write(nudge, place=place)
        told = pim.event("heartbeat")
        assert (told["agentId"], told["reason"]) == ("gofer", "goal.blocked")
        assert "secret words" not in str(told)


def test_clients_are_told_when_the_store_goes_away_and_comes_back(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_events, "LOOK_AGAIN", 0.1)
    monkeypatch.setattr(gateway_events, "BETWEEN", 0.1)
    with gateway(house, token) as client:
        assert client.ask("health")["ok"] is True

        def away(connection: Any) -> None:
            raise StoreUnavailable("It is away.")

        with monkeypatch.context() as patch:
            patch.setattr(gateway_events, "_any", away)
            assert client.event("health")["ok"] is False
        assert client.event("health", ok=True)["defaultAgentId"] == "gofer"


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    house = House(tmp_path / "data")
    open_ = True
    try:
        with gateway(house, house.token(house.owner())) as client:
            house.close()
            open_ = False
            assert client.event("shutdown")["reason"]
            with pytest.raises(ConnectionClosed) as closed:
                client.next()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
    finally:
        if open_:
            house.close()
