"""Many sessions of the gateway protocol at once, in bursts or for long, that abort, are paused from the other door, and
reconnect: nothing is lost or doubled, and every run ends once."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocols.gateway_client import GatewayClient, gateway
from protocols.session_client import session
from support.patience import until
from support.web_server import House

ENDS = ("final", "aborted", "error")
WITHIN = 120
"""Seconds for a hundred sessions."""


class Pressed:
    """One session under pressure. What it does is decided by a seed."""

    def __init__(self, house: House, token: str, number: int, burst: int) -> None:
        # A name of its own each time: what is tried again is not taken for a repeat.
        self.house, self.token, self.burst = house, token, burst
        self.name = f"gateway-pressed-{number}-{uuid.uuid4().hex[:8]}"
        self.key = f"agent:gofer:{self.name}"
        self.random = random.Random(number)
        self.said: dict[str, str] = {}

    def run(self) -> None:
        for _ in range(2):
            with gateway(self.house, self.token) as client:
                for _ in range(4 // self.burst):
                    self._say(client)
                    self._meddle(client)
                self._check_ends(client)  # the line breaks here, in the middle of whatever goes on
        self._control("resume")
        with gateway(self.house, self.token) as client:
            last = f"{self.name}-last"
            self.said[last] = "$ echo the last word"
            # Each of them starts a shell now.
            assert "the last word" in client.say(self.said[last], last, self.key, within=WITHIN)
            until(lambda: all(self._is_over(client, run) for run in self.said), within=WITHIN)
            history = client.ask("chat.history", sessionKey=self.key, limit=1000)["messages"]
            self._check_ends(client)
        kept = {
            each["idempotencyKey"]: each["content"][0]["text"] for each in history if each["role"] == "user"
        }
        assert [(run, text) for run, text in kept.items() if run in self.said] == list(self.said.items())
        assert (
            max(Counter(each.get("idempotencyKey") for each in history if each["role"] == "user").values())
            == 1
        )

    def _say(self, client: GatewayClient) -> None:
        asked = []
        for _ in range(self.burst):
            run = f"{self.name}-{len(self.said):04}"
            self.said[run] = f"word {len(self.said)}"
            params = {"sessionKey": self.key, "message": self.said[run], "idempotencyKey": run}
            # As one does whose acknowledgement was lost.
            asked += [client.send("chat.send", params) for _ in range(self.random.choice((1, 2)))]
        statuses = [client.response(each)["status"] for each in asked]
        assert set(statuses) <= {"started", "in_flight", "ok", "aborted"}
        assert statuses.count("started") == self.burst

    def _meddle(self, client: GatewayClient) -> None:
        action = self.random.choice(("abort", "pause", "resume", "history"))
        if action == "abort":
            client.ask("chat.abort", sessionKey=self.key)
        elif action == "history":
            client.ask("chat.history", sessionKey=self.key)
        else:
            self._control(action)

    def _control(self, action: str) -> None:
        with session(self.house, self.token, session=self.name) as other:
            answer = other.ask("agent.control", action=action)
            assert answer["type"] != "error" or answer["code"] == "execution_failed", answer

    def _is_over(self, client: GatewayClient, run: str) -> bool:
        return bool(client.ask("agent.wait", runId=run, timeoutMs=2000)["status"] != "timeout")

    def _check_ends(self, client: GatewayClient) -> None:
        told = [frame["payload"] for frame in client.frames if frame.get("event") == "chat"]
        ends = Counter(each["runId"] for each in told if each["state"] in ENDS)
        assert max(ends.values(), default=1) == 1, ends


@pytest.mark.parametrize(
    ("sessions", "burst"),
    [
        pytest.param(4, 1, id="4-sustained"),
        pytest.param(4, 4, id="4-bursty"),
        pytest.param(30, 4, id="30-bursty", marks=pytest.mark.slow(long=True)),
        pytest.param(100, 4, id="100-bursty", marks=pytest.mark.chaos),
        # A hundred shells start at once, which takes two minutes of two cores.
        pytest.param(100, 1, id="100-sustained", marks=pytest.mark.chaos),
    ],
)
def test_sessions_that_abort_pause_and_reconnect_lose_and_double_nothing(
    house: House, token: str, sessions: int, burst: int
) -> None:
    pressed = [
        Pressed(house, token, sessions * 1000 + burst * 100_000 + number, burst) for number in range(sessions)
    ]
    with ThreadPoolExecutor(sessions) as pool:
        list(pool.map(Pressed.run, pressed))
