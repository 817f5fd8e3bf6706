"""A server that is killed again and again in the middle of answers: no message is lost, none is doubled."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from e2e.process import Gofer, free_port
from protocols.gateway_client import GatewayClient, hello_params, line
from protocols.test_session_kills import owner_token
from support.patience import Deadline, patience

pytestmark = pytest.mark.slow

CLIENTS, MESSAGES, KILLS = 6, 4, 3


class Persistent:
    """A client that says again, under the same key, what it has no answer to."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self.url, self.token, self.name = url, token, name
        self.session = f"agent:gofer:{name}"
        self.answered = 0
        self.spoken: list[tuple[str, str]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        deadline = Deadline(240)
        try:
            while not self.spoken:
                assert deadline.left > 0, f"{self.name} has {self.answered}"
                with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                    self._talk()
                time.sleep(0.1)
        except BaseException as error:
            self.error = error

    def _talk(self) -> None:
        with line(self.url) as client:
            client.ask("connect", **hello_params(self.token))
            while self.answered < MESSAGES:
                self._say(client, f"{self.name}-{self.answered}")
                self.answered += 1
            history = client.ask("chat.history", sessionKey=self.session)["messages"]
            self.spoken = [(each["role"], json.dumps(each["content"])) for each in history]

    def _say(self, client: GatewayClient, key: str) -> None:
        client.ask("chat.send", sessionKey=self.session, message=f"word {key}", idempotencyKey=key)
        state = "timeout"
        while state == "timeout":
            wait = int(patience(20) * 1000)
            state = client.ask("agent.wait", runId=key, timeoutMs=min(wait, 5000))["status"]
        assert state == "ok"


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "data"
    environment = {
        "GOFER_DATA_DIR": str(folder),
        "GOFER_PORT": str(port),
        "GOFER_SANDBOX": "off",
        "GOFER_LOG": "json",
        "GOFER_LEASE": "5",
    }
    server = Gofer(environment, "web", "worker", log=tmp_path / "log").wait_until_ready()
    token = owner_token(folder)
    clients = [Persistent(f"http://127.0.0.1:{port}", token, f"client{number}") for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        threads[0].join(1.0)
        server.kill()
        server = Gofer(environment, "web", "worker", log=tmp_path / "log").wait_until_ready()
    for thread in threads:
        thread.join()
    server.stop()
    assert [client.error for client in clients] == [None] * CLIENTS
    for client in clients:
        assert [role for role, _ in client.spoken] == ["user", "assistant"] * MESSAGES
        said = [text for role, text in client.spoken if role == "user"]
        assert all(f"word {client.name}-{number}" in text for number, text in enumerate(said))
