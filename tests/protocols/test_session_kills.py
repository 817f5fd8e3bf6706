"""A server that is killed again and again: no message of a session is lost, none is doubled, numbers have no gaps."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from e2e.process import Gofer, free_port
from support.patience import Deadline, patience

pytestmark = pytest.mark.slow

CLIENTS, MESSAGES, KILLS = 8, 4, 3


class Persistent:
    """A client that keeps what it was told, and says again what was not acknowledged."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self.url, self.token, self.name = url, token, name
        self.answers: dict[int, str] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        deadline = Deadline(240)
        try:
            while len(self.answers) < MESSAGES:
                assert deadline.left > 0, f"{self.name} has {sorted(self.answers)}"
                with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                    self._talk()
                time.sleep(0.1)
        except BaseException as error:
            self.error = error

    def _talk(self) -> None:
        query = f"session=killed-{self.name}&after={len(self.answers)}"
        headers = {"Authorization": f"Bearer {self.token}"}
        with connect(f"{self.url}?{query}", additional_headers=headers, proxy=None, close_timeout=1) as line:
            self._say(line)
            while len(self.answers) < MESSAGES:
                self._take(line, json.loads(line.recv(timeout=patience(20))))

    def _say(self, line: Any) -> None:
        number = len(self.answers)
        if number < MESSAGES:
            id_ = f"{self.name}-message-number-{number}"
            line.send(json.dumps({"type": "chat.send", "id": id_, "text": f"word {number}"}))

    def _take(self, line: Any, frame: dict[str, Any]) -> None:
        if frame["type"] == "session.receive":
            assert frame["seq"] == len(self.answers) + 1, f"a gap or a double: {frame}"
            self.answers[frame["seq"]] = frame["content"]
            self._say(line)


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
    url = f"ws://127.0.0.1:{port}/v1/agents/gofer/stream"
    clients = [Persistent(url, token, f"client{number}") for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        threads[0].join(1.5)
        server.kill()
        server = Gofer(environment, "web", "worker", log=tmp_path / "log").wait_until_ready()
    for thread in threads:
        thread.join()
    server.stop()
    assert [client.error for client in clients] == [None] * CLIENTS
    assert all(sorted(client.answers) == list(range(1, MESSAGES + 1)) for client in clients)


def owner_token(folder: Path) -> str:
    """A token of the owner, made as `gofer tokens add` does."""
    made = subprocess.run(
        [sys.executable, "-m", "gofer", "tokens", "add", "test", "--scope", "write", "--json"],
        env={"GOFER_DATA_DIR": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(60),
    )
    return str(json.loads(made.stdout)["token"])
