"""Whatever a client sends, it gets an answer by the schema, and the connection goes on."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from gofer.web.protocols.session import HANDLERS
from gofer.web.protocols.session_runs import ACTIONS
from protocols.session_client import SCHEMA, session
from support.web_server import House

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(
    {
        name
        for key, schema in SCHEMA["$defs"].items()
        if key.startswith("client.")
        for name in schema["properties"]
        if name != "type"
    }
)
MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    # What is said to the agent would only fill the queue, and is tried with odd values elsewhere.
    st.sampled_from(
        sorted(set(HANDLERS) - {"chat.send", "session.send", "agent.run.start", "agent.run.step"})
    )
    | st.text(max_size=20),
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4),
)


def test_the_schema_names_every_message_and_action(house: House) -> None:
    named = {key.removeprefix("client.") for key in SCHEMA["$defs"] if key.startswith("client.")}
    assert set(HANDLERS) <= named
    assert set(ACTIONS) <= set(SCHEMA["$defs"]["client.agent.control"]["properties"]["action"]["enum"])


@pytest.mark.parametrize("kind", ["chat.send", "session.send", "agent.run.start", "agent.run.step"])
def test_what_cannot_be_said_is_refused_in_each_way_to_say_it(house: House, token: str, kind: str) -> None:
    with session(house, token) as client:
        client.next()
        odd_ones: list[Any] = [" ", 7, True, None, [], {}, ["hello"]]
        for odd in odd_ones:
            assert client.ask(kind, content=odd)["type"] == "error"
        assert client.ask("session.history")["messages"] == []


def test_odd_messages_are_answered(house: House, token: str) -> None:
    with session(house, token, session="odd-messages") as client:
        client.next()
        client.say("hello")

    @hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.lists(MESSAGES, min_size=1, max_size=20))
    def send(messages: list[dict[str, Any]]) -> None:
        with session(house, token, session="odd-messages") as client:
            client.next()
            for message in messages:
                client.connection.send(json.dumps(message))
            client.send("ping", id="the-end")
            client.until(lambda frame: frame["type"] == "pong" and frame.get("request") == "the-end")

    send()
