"""Many sessions at once that pause, resume, cancel and reconnect: nothing is lost or doubled, numbers have no gaps."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from protocols.session_client import SessionClient, session
from support.web_server import House


class Pressed:
    """One session under pressure. What it does is decided by a seed."""

    def __init__(self, house: House, token: str, number: int) -> None:
        self.house, self.token, self.name = house, token, f"pressed-{number}"
        self.random = random.Random(number)
        self.said: list[str] = []
        self.seen = 0

    def run(self) -> None:
        for _ in range(2):
            with self._line() as client:
                for _ in range(2):
                    self._say(client)
                    self._meddle(client)
                self.seen = client.frames[-1][
                    "seq"
                ]  # the line breaks here, in the middle of whatever goes on
        with self._line() as client:
            client.ask("agent.control", action="resume")
            self._say(client, "$ echo the last word")
            client.until(lambda frame: "the last word" in frame.get("content", ""))
            history = client.ask("session.history", limit=100)["messages"]
        said = [each["content"] for each in history if each["role"] == "user"]
        assert [each for each in said if each in self.said] == self.said

    def _line(self) -> AbstractContextManager[SessionClient]:
        return session(self.house, self.token, session=self.name, after=self.seen)

    def _say(self, client: SessionClient, words: str = "") -> None:
        text = f"{words or 'word'} {len(self.said)}"
        self.said.append(text)
        for _ in range(self.random.choice((1, 2))):  # as one does whose acknowledgement was lost
            answer = client.ask("chat.send", id=f"{self.name}-message-{len(self.said):04}", content=text)
            assert answer["status"] == "accepted", answer

    def _meddle(self, client: SessionClient) -> None:
        action = self.random.choice(("pause", "resume", "cancel", "state"))
        answer = client.ask("agent.control", action=action)
        assert answer["type"] != "error" or answer["code"] == "execution_failed", answer


@pytest.mark.parametrize(
    "sessions",
    [
        6,
        pytest.param(30, marks=pytest.mark.slow(long=True)),
        pytest.param(100, marks=pytest.mark.chaos),
    ],
)
def test_sessions_that_pause_cancel_and_reconnect_lose_and_double_nothing(
    house: House, token: str, sessions: int
) -> None:
    pressed = [Pressed(house, token, sessions * 1000 + number) for number in range(sessions)]
    with ThreadPoolExecutor(sessions) as pool:
        list(pool.map(Pressed.run, pressed))
