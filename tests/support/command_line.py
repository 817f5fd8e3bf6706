"""The real command line beside a real server, and a strict stand-in for the service it speaks with."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import httpx2
import pytest

from e2e.process import become, forks
from gofer.cli import main
from gofer.web.unix_socket import reachable
from gofer_standins.hello import HelloService
from support.patience import Deadline, patience
from support.process_speed import new_loop

SIGNING_KEY = "a signing key that must never be shown"
PATIENCE = 60.0


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    """What a process is started with: nothing of the installation the tests run in."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
    # What is compiled once starts faster the next twenty times.
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    given = {f"GOFER_{name.upper()}": value for name, value in settings.items()}
    return {
        **clean,
        "GOFER_DATA_DIR": str(data_dir),
        "GOFER_LOG_FORMAT": "json",
        "GOFER_PORT": "0",
        "GOFER_SANDBOX": "off",
        "GOFER_POLL_INTERVAL": "0.2",
        **given,
    }


def gofer(
    data_dir: Path, *arguments: str, stdin: str = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody at a shell would."""
    with tempfile.TemporaryDirectory() as folder:
        given, out, err = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin)
        forked = Forked(environment(data_dir, **settings), arguments, str(given), str(out), str(err))
        code = forked.wait(patience(120))
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


class Forked:
    """`python -m gofer` in a process forked from one that has everything imported, which saves half a second."""

    def __init__(
        self,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        stdin: str,
        stdout: str,
        stderr: str,
        constants: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        given = (dict(environment), list(arguments), dict(constants), stdin, stdout, stderr)
        self._process = forks.Process(target=_main, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, "it still runs"
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _main(
    environment: dict[str, str], arguments: list[str], constants: dict[str, Any], *streams: str
) -> None:
    os.environ.clear()
    become(environment, os.devnull)
    if streams[0].startswith("/dev/pts/"):
        os.setsid()  # so that the terminal opened next is its own, and no other
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["gofer", *arguments]
    sys.exit(main(arguments))


class Process:
    """A running `gofer serve` (or web, or worker)."""

    CONSTANTS: ClassVar[Mapping[str, Any]] = {}
    """What it has another value of than Gofer has, by module and name."""

    def __init__(self, data_dir: Path, *arguments: str, **settings: str) -> None:
        self.data_dir = data_dir
        self._output = data_dir.parent / f"log-{time.monotonic_ns()}"
        command = arguments or ("serve",)
        port = () if command[0] == "worker" else ("--port", "0")
        self._output.touch()
        given, output = environment(data_dir, **settings), str(self._output)
        self.process = Forked(given, (*command, *port), os.devnull, output, output, self.CONSTANTS)
        self.url = ""

    def wait_until_ready(self) -> Process:
        """By its own word in the log."""
        deadline = Deadline(PATIENCE)
        while deadline.left > 0:
            for line in self.log():
                if line.get("event") == "process.ready":
                    self.url = line["url"]
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(self.text())

    def text(self) -> str:
        return self._output.read_text()

    def log(self) -> list[dict[str, Any]]:
        """The complete lines it has logged."""
        found = []
        for line in self.text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(patience(PATIENCE))

    def close(self) -> None:
        self.process.kill()


class Hello:
    """The stand-in in a thread of its own, so that tests need no event loop."""

    def __init__(self) -> None:
        self.service = HelloService(SIGNING_KEY)
        self._loop = new_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(patience(PATIENCE))

    def _run(self) -> None:
        async def live() -> None:
            async with self.service.open():
                self._ready.set()
                await self._over.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(live())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def post(self, url: str, connection: str, id: str, text: str = "hello", room: str = "kitchen") -> Any:
        """A signed webhook; its answer."""
        body = self.service.message(id, room, text)
        return httpx2.post(f"{url}/hooks/{connection}", content=body, headers=self.service.signed(body))

    def replies_to(self, *ids: str) -> list[str]:
        return [reply.to for reply in self.service.ledger if reply.to in ids]


class Terminal:
    """Types commands in this process, which is the same code without the wait for the interpreter."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.shown = ""

    def __call__(self, *arguments: str, stdin: str = "", fails: int = 0) -> str:
        """A command that ends with the given code; what it printed, on stderr when it fails."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main([*arguments])
        out, err = self._capsys.readouterr()
        self.shown += out + err
        assert code == fails, f"{arguments}: {code}\n{out}\n{err}"
        assert "Traceback" not in err
        if fails:
            assert len(err.strip().splitlines()) <= 1, err
        return err if fails else out

    def json(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin))


def control(data_dir: Path, path: str) -> Any:
    """Ask a running server over its socket."""
    with (
        reachable(data_dir / "gofer.sock") as name,
        httpx2.Client(transport=httpx2.HTTPTransport(uds=name, verify=False)) as client,
    ):
        return client.get(f"http://gofer/api/v1{path}").json()
