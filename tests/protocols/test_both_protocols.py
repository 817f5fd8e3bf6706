"""What the session protocol and the gateway protocol both promise, over each of them."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gofer.errors import StoreUnavailable
from gofer.web import client_socket, server
from gofer.web.client_socket import TOKEN_BURST, Allowance
from protocols.gateway_client import GatewayClient, gateway, hello_params, text_of
from protocols.session_client import SessionClient, session
from support.patience import patience, until
from support.web_server import House


class Client(Protocol):
    """A client of either protocol, as far as both promise the same."""

    def say(self, text: str, key: str) -> None: ...

    def answer(self) -> str: ...

    def spoken(self) -> list[tuple[str, str]]: ...

    def stop(self) -> None: ...

    def refused(self, value: Any, key: str = ...) -> bool: ...


class OverSession:
    """The session protocol."""

    def __init__(self, client: SessionClient) -> None:
        self.client = client
        client.next()

    def say(self, text: str, key: str) -> None:
        self.client.send("chat.send", id=key, content=text)
        self.client.wait("agent.progress", status="accepted")

    def answer(self) -> str:
        return str(self.client.wait("session.receive")["content"])

    def spoken(self) -> list[tuple[str, str]]:
        return [
            (each["role"], each["content"])
            for each in self.client.ask("session.history", limit=100)["messages"]
        ]

    def stop(self) -> None:
        self.client.ask("agent.control", action="cancel")

    def refused(self, value: Any, key: str = "refused-1") -> bool:
        return bool(self.client.ask("chat.send", id=key, content=value)["type"] == "error")


class OverGateway:
    """The gateway protocol."""

    def __init__(self, client: GatewayClient, name: str) -> None:
        self.client, self.key = client, f"agent:gofer:{name}"
        client.ask("chat.history", sessionKey=self.key)

    def say(self, text: str, key: str) -> None:
        self.client.ask("chat.send", sessionKey=self.key, message=text, idempotencyKey=key)

    def answer(self) -> str:
        ends = ("final", "aborted", "error")
        frame = self.client.until(
            lambda frame: frame.get("event") == "chat" and frame["payload"]["state"] in ends
        )
        return text_of(frame["payload"])

    def spoken(self) -> list[tuple[str, str]]:
        found = self.client.ask("chat.history", sessionKey=self.key)["messages"]
        return [(each["role"], each["content"][0]["text"]) for each in found]

    def stop(self) -> None:
        self.client.ask("chat.abort", sessionKey=self.key)

    def refused(self, value: Any, key: str = "refused-1") -> bool:
        given = {"sessionKey": self.key, "message": value, "idempotencyKey": key}
        return self.client.refused("chat.send", **given).code == "INVALID_REQUEST"


@contextlib.contextmanager
def connected(protocol: str, house: House, token: str, name: str) -> Iterator[Client]:
    if protocol == "session":
        with session(house, token, session=name) as client:
            yield OverSession(client)
    else:
        with gateway(house, token) as other:
            yield OverGateway(other, name)


@pytest.fixture(params=["session", "gateway"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_said_is_answered_and_kept(house: House, token: str, protocol: str) -> None:
    with connected(protocol, house, token, f"kept-{protocol}") as client:
        client.say("$ echo one", f"{protocol}-kept-message-1")
        assert "one" in client.answer()
        assert [role for role, _ in client.spoken()] == ["user", "assistant"]


def test_what_is_sent_twice_is_said_once(house: House, token: str, protocol: str) -> None:
    with connected(protocol, house, token, f"once-{protocol}") as client:
        for _ in range(3):
            client.say("$ sleep 0.2; echo once", f"{protocol}-once-message-1")
        assert "once" in client.answer()
        assert [role for role, _ in client.spoken()] == ["user", "assistant"]


def test_an_id_that_was_used_in_another_session_is_refused(house: House, token: str, protocol: str) -> None:
    id_ = f"{protocol}-elsewhere-message-1"
    with connected(protocol, house, token, f"here-{protocol}") as client:
        client.say("$ echo here", id_)
    with connected(protocol, house, token, f"there-{protocol}") as client:
        assert client.refused("$ echo there", id_)
        assert client.spoken() == []


def test_a_client_that_went_finds_what_was_answered(house: House, token: str, protocol: str) -> None:
    with connected(protocol, house, token, f"went-{protocol}") as client:
        client.say("$ sleep 0.3; echo late", f"{protocol}-went-message-1")
    with connected(protocol, house, token, f"went-{protocol}") as client:
        until(lambda: client.spoken()[-1][0] == "assistant")
        assert "late" in client.spoken()[-1][1]
        assert len(client.spoken()) == 2


def test_what_is_under_way_is_stopped(house: House, token: str, protocol: str) -> None:
    with connected(protocol, house, token, f"stop-{protocol}") as client:
        client.say("$ sleep 30", f"{protocol}-stop-message-1")
        client.stop()
        client.answer()


def test_a_session_is_its_members_alone(house: House, token: str, protocol: str) -> None:
    with connected(protocol, house, token, f"mine-{protocol}") as client:
        client.say("$ echo mine", f"{protocol}-mine-message-1")
        client.answer()
    other = house.token(house.member(f"other-{protocol}", "operator", password=""), "write")
    with connected(protocol, house, other, f"mine-{protocol}") as client:
        assert client.spoken() == []


@pytest.mark.parametrize("odd", [" ", 7, None, [], {}])
def test_what_cannot_be_said_is_refused(house: House, token: str, protocol: str, odd: Any) -> None:
    with connected(protocol, house, token, f"odd-{protocol}") as client:
        assert client.refused(odd)


def test_the_same_session_is_behind_both_doors(house: House, token: str) -> None:
    with connected("gateway", house, token, "one-room") as here:
        here.say("$ echo from the gateway", "one-room-message-1")
        here.answer()
        with connected("session", house, token, "one-room") as there:
            assert there.spoken() == here.spoken()
            there.say("$ echo from the session", "one-room-message-2")
            assert "from the session" in there.answer()
            assert "from the session" in here.answer()


def test_a_store_that_is_away_is_said_and_the_connection_goes_on(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(connection: Any, value: str) -> None:
        raise StoreUnavailable("The store is away.")

    with session(house, token, session="away") as one, gateway(house, token) as other:
        one.next()
        with monkeypatch.context() as patch:
            patch.setattr("gofer.web.auth.guard.by_token", away)
            patch.setattr("gofer.web.protocols.gateway.by_token", away)
            refused = one.ask("chat.send", content="hello")
            assert (refused["type"], refused["code"]) == ("error", "storage_unavailable")
            said = {"sessionKey": "agent:gofer:away", "message": "hello", "idempotencyKey": "away-1"}
            error = other.refused("chat.send", **said).error
            assert (error["code"], error["retryable"]) == ("UNAVAILABLE", True)
        assert one.say("hello")
        assert other.ask("chat.send", **said)["status"] == "started"


def test_memories_that_cannot_be_searched_are_said(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(house, token, session="degraded") as client:
        client.next()
        client.say("The harbour is called Ostende.")
        search = house.platform.recall.search

        async def degraded(*given: Any, **more: Any) -> Any:
            return replace(await search(*given, **more), degraded={"conversation": "away"})

        monkeypatch.setattr(house.platform.recall, "search", degraded)
        assert client.ask("memory.query", topic="harbour", id="q")["type"] == "memory.query"
        told = client.until(lambda frame: frame["type"] == "error")
        assert (told["request"], told["code"]) == ("q", "memory_degraded")


def test_one_token_has_a_rate_over_all_its_sessions(
    house: House, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Allowance, "spend", lambda allowance: allowance._burst < TOKEN_BURST)
    with session(house, token) as client:
        client.next()
        refused = client.ask("ping")
        assert (refused["code"], refused["retryAfterMs"]) == ("queue_saturated", 1000)


# Clients that do not read.


@pytest.fixture(scope="module")
def long_session(house: House, token: str) -> str:
    """A session of which much is to be told."""
    with session(house, token, session="long") as client:
        client.next()
        for _ in range(4):
            client.say("x" * 60_000)
    return "long"


@contextlib.contextmanager
def deaf(protocol: str, house: House, token: str, name: str) -> Iterator[ClientConnection]:
    """A client that asks for more than is held for it, and reads none of it."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", int(house.url.rpartition(":")[2])))
    where = f"/v1/agents/gofer/stream?session={name}" if protocol == "session" else "/gateway"
    with connect(
        house.url.replace("http", "ws") + where,
        sock=raw,
        additional_headers={"Authorization": f"Bearer {token}"},
        max_size=None,
        max_queue=1,
        ping_interval=None,
        close_timeout=0,
        proxy=None,
    ) as client:
        client.recv(timeout=patience(20))
        if protocol == "session":
            asked = {"type": "session.history", "limit": 100}
        else:
            asked = {"type": "req", "method": "connect", "id": "hello", "params": hello_params(token)}
            client.send(json.dumps(asked))
            asked |= {"method": "chat.history", "params": {"sessionKey": f"agent:gofer:{name}"}}
        for number in range(28):
            client.send(json.dumps({**asked, "id": str(number)}))
        yield client


def test_who_never_reads_is_cut_off_and_holds_nothing(
    house: House, token: str, protocol: str, long_session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "SEND_TIMEOUT", 0.3)
    monkeypatch.setattr(server, "GOODBYE_TIMEOUT", 0.3)
    with connected(protocol, house, token, f"calm-{protocol}") as neighbour:
        before = set(house.connections)
        with deaf(protocol, house, token, long_session):
            neighbour.say("$ echo undisturbed", f"{protocol}-undisturbed-1")
            assert "undisturbed" in neighbour.answer()
            until(lambda: house.connections <= before)


def test_who_reads_too_late_is_told_why_it_was_closed(
    house: House, token: str, protocol: str, long_session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "SEND_TIMEOUT", 0.3)
    monkeypatch.setattr(server, "GOODBYE_TIMEOUT", patience(60))
    before = set(house.connections)
    with deaf(protocol, house, token, long_session) as client:
        until(lambda: any(each.close_sent for each in house.connections - before))
        with contextlib.suppress(ConnectionClosed):
            while True:
                client.recv(timeout=patience(20))
        assert client.close_code == (4408 if protocol == "session" else 1008)
