"""`gofer up` with the release that is installed: killed, it serves again, whoever asked meanwhile is answered, and the
log says what happened."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.process import free_port
from support.patience import patience, until


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
    environment = {
        **kept,
        "GOFER_DATA_DIR": str(tmp_path),
        "GOFER_PORT": str(port),
        "GOFER_SANDBOX": "off",
        "GOFER_LOG_TO": "stderr",
    }
    command = [sys.executable, "-m", "gofer", "up", "--probation", "1"]
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(patience(60)) == 0
    finally:
        supervisor.kill()


def test_a_killed_server_is_back_and_nobody_was_refused(url: str, tmp_path: Path) -> None:
    def ask() -> int:
        with urllib.request.urlopen(f"{url}/healthz", timeout=patience(60)) as answer:
            return int(answer.status)

    state = tmp_path / "home" / "supervisor.json"
    until(state.exists)
    until(lambda: json.loads(state.read_text())["processes"])
    assert ask() == 200  # it waits at the supervisor's socket until the server is up
    ((pid, _),) = json.loads(state.read_text())["processes"].values()
    os.kill(pid, signal.SIGKILL)
    assert ask() == 200

    def told() -> list[tuple[str, int]]:
        with sqlite3.connect(tmp_path / "gofer.db") as store:
            found = store.execute("SELECT data FROM event WHERE kind = 'worker.exited'").fetchall()
        return [(data["name"], data["code"]) for data in (json.loads(text) for (text,) in found)]

    until(lambda: told() == [("serve", -signal.SIGKILL)])
    until((tmp_path / "home" / "good").is_symlink)
