"""A tmux server of a test's own, on a socket of its own, with agents and people in it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import until

AGENT = Path(__file__).with_name("pane_agent.py")
MISSING = "tmux is not installed (apt-get install tmux); panes were not tried"
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason=MISSING)


class Terminals:
    """The server, by `tmux` itself and not by what is tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "s")
        self._clients: list[tuple[subprocess.Popen[bytes], int]] = []
        self.run("new-session", "-d", "-x", "120", "-y", "40", "-s", "desk", "-n", "shell", "sleep 86400")

    def run(self, *words: str) -> str:
        """What a command of tmux prints."""
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self.socket, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip("\n")

    def window(self, name: str, *command: str) -> str:
        """A new window with a program in it; its pane's id."""
        line = shlex.join(command)
        return self.run(
            "new-window", "-d", "-P", "-F", "#{pane_id}", "-t", "desk:", "-n", name, f"exec {line}"
        )

    def agent(self, name: str, *more: str) -> str:
        """A window in which an agent waits at its prompt."""
        pane = self.window(name, sys.executable, "-I", str(AGENT), str(self.log(name)), *more)
        self.wait_for(pane, ">")
        return pane

    def log(self, name: str) -> Path:
        """Where an agent writes what it was told."""
        return self.folder / f"{name}.log"

    def told(self, name: str) -> list[dict[str, Any]]:
        """What an agent was told so far."""
        path = self.log(name)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def screen(self, pane: str) -> str:
        """What a pane shows."""
        return self.run("capture-pane", "-p", "-t", pane)

    def wait_for(self, pane: str, text: str) -> None:
        """Wait until a pane shows a text."""
        until(lambda: text in self.screen(pane), within=10)

    def person(self, pane: str) -> int:
        """Attach a terminal of a person to a pane; what is written to the descriptor is typed."""
        self.run("select-window", "-t", pane)
        outside, inside = pty.openpty()
        client = subprocess.Popen(
            ["tmux", "-S", self.socket, "attach", "-t", "desk"],
            stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        os.close(inside)
        self._clients.append((client, outside))
        until(lambda: self.run("list-clients"), within=10)
        return outside

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.run("kill-server")
        for client, outside in self._clients:
            client.wait(10)
            os.close(outside)


@contextlib.contextmanager
def terminals() -> Iterator[Terminals]:
    """A server in a short path: the name of a socket has at most a hundred characters."""
    if shutil.which("tmux") is None:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="gt", dir="/tmp") as folder:
        made = Terminals(Path(folder))
        try:
            yield made
        finally:
            made.close()
