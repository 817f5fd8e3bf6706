"""Whatever a client of the gateway protocol sends, it gets an answer by the schema, and the connection goes on."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from gofer.web.protocols import gateway as door
from gofer.web.protocols.gateway import METHODS
from gofer.web.protocols.gateway_frames import NAMELESS
from protocols.gateway_client import SCHEMA, gateway, hello_params, line
from protocols.test_session_fuzz import ANYTHING
from support.web_server import House

PARAMS = {
    "chat.send": "ChatSendParams",
    "chat.history": "ChatHistoryParams",
    "chat.abort": "ChatAbortParams",
    "agent": "AgentParams",
    "agent.wait": "AgentWaitParams",
    "sessions.list": "SessionsListParams",
    "sessions.patch": "SessionsPatchParams",
    "sessions.reset": "SessionsResetParams",
    "sessions.delete": "SessionsDeleteParams",
    "sessions.send": "SessionsSendParams",
    "sessions.steer": "SessionsSendParams",
    "sessions.abort": "SessionsAbortParams",
    "sessions.resolve": "SessionsResolveParams",
    "sessions.preview": "SessionsPreviewParams",
    "sessions.messages.subscribe": "SessionsMessagesSubscribeParams",
    "models.list": "ModelsListParams",
    "cron.list": "CronListParams",
    "cron.add": "CronAddParams",
    "cron.remove": "CronRemoveParams",
    "cron.run": "CronRunParams",
    "device.pair.list": "DevicePairListParams",
    "device.pair.approve": "DevicePairApproveParams",
    "device.pair.reject": "DevicePairRejectParams",
    "device.pair.remove": "DevicePairRemoveParams",
    "device.token.rotate": "DeviceTokenRotateParams",
    "device.token.revoke": "DeviceTokenRevokeParams",
    "exec.approval.get": "ExecApprovalGetParams",
    "exec.approval.resolve": "ExecApprovalResolveParams",
    "config.get": "ConfigGetParams",
}
"""What the published schema calls the parameters of a method."""
CODES = ("INVALID_REQUEST", "FORBIDDEN", "APPROVAL_NOT_FOUND")
"""With which odd requests may be refused; any other one would be a failure of ours."""
KEYS = {"sessionKey": "agent:gofer:odd", "key": "agent:gofer:odd", "runId": "odd-run"}


def fields(definition: str) -> list[str]:
    """The fields that the schema gives to something, in any of its forms."""
    whole = SCHEMA["definitions"][definition]
    forms = [whole, *whole.get("anyOf", ())]
    return sorted({name for form in forms for name in form.get("properties", ())}) or ["odd"]


def requests() -> st.SearchStrategy[tuple[str, Any]]:
    """Methods with odd values in some of their fields, beside a key that is right."""

    def odd(method: str) -> st.SearchStrategy[tuple[str, Any]]:
        names = fields(PARAMS[method]) if method in PARAMS else ["agentId", "key"]
        right = {name: KEYS[name] for name in names if name in KEYS}
        given = st.dictionaries(st.sampled_from(names), ANYTHING, max_size=3)
        return st.tuples(st.just(method), given.map(lambda each: {**right, **each}) | ANYTHING)

    return st.sampled_from(sorted(METHODS)).flatmap(odd) | st.tuples(
        st.text(min_size=1, max_size=20), ANYTHING
    )


def test_odd_requests_are_answered(house: House, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BURST", 10_000.0)
    monkeypatch.setattr("gofer.web.protocols.gateway_chat.MAX_WAIT", 100)

    @hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.lists(requests(), min_size=1, max_size=20))
    def send(asked: list[tuple[str, Any]]) -> None:
        with gateway(house, token) as client:
            ids = {client.send(method, params) for method, params in asked}
            # What could not be read is answered without its id, and may be answered before what came first.
            answered = [client.until(lambda frame: frame["type"] == "res") for _ in ids]
            for answer in answered:
                if not answer["ok"]:
                    assert answer["error"]["code"] in CODES
            named = [answer["id"] for answer in answered if answer["id"] != NAMELESS]
            assert len(named) == len(set(named))
            assert set(named) <= ids
            assert client.ask("health")["ok"] is True

    send()


def test_odd_handshakes_are_refused(house: House, token: str) -> None:
    names = fields("ConnectParams")

    @hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(
        st.dictionaries(st.sampled_from(names), ANYTHING, min_size=1, max_size=3), st.booleans()
    )
    def connect(odd: dict[str, Any], whole: bool) -> None:
        with line(house.url) as client:
            id_ = client.send("connect", {**hello_params(token), **odd} if whole else odd)
            answer = client.next()
            assert answer["id"] in (id_, NAMELESS)
            if not answer["ok"]:
                assert answer["error"]["code"] in ("INVALID_REQUEST", "UNAVAILABLE")

    connect()


def test_every_method_says_what_is_missing(house: House, token: str) -> None:
    with gateway(house, token) as client:
        for method, definition in PARAMS.items():
            if not SCHEMA["definitions"][definition].get("required"):
                continue
            error = client.refused(method)
            assert error.code == "INVALID_REQUEST"
            assert method in str(error)


def test_answers_are_the_same_for_what_is_not_an_object(house: House, token: str) -> None:
    with gateway(house, token) as client:
        odd: Any
        for odd in ([], "text", 7, True):
            client.connection.send(
                json.dumps({"type": "req", "id": "odd", "method": "chat.send", "params": odd})
            )
            assert client.until(lambda frame: frame.get("id") == "odd")["error"]["code"] == "INVALID_REQUEST"
