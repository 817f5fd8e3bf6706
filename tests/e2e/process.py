"""Gofer as real processes, which may die at any point and be stopped, killed and started again.

They are forked from a process that has everything imported, so that a start costs a tenth of a second; from there
on they run what `gofer serve`, `gofer web` and `gofer worker` run.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from support.patience import Deadline, patience

PLUGIN = Path(__file__).parent / "plugin"
PATIENCE = 60.0
PR_SET_PDEATHSIG = 1

PRELOADED = [
    "gofer.serve",
    "gofer.cli.commands",
    "gofer.cli.serve",
    "gofer.web.api.openapi",
    "gofer.web.api.table",
    "gofer.web.protocols.gateway",
    "gofer.web.protocols.session",
    "gofer.store.migrations",
    "alembic.command",
    "gofer_hello",
    "gofer_telegram",
    "gofer_github",
    "gofer_webchat",
    "httpcore2",
    "asyncpg",
    "uvloop",
    "anyio._backends._asyncio",
    "uvicorn.protocols.websockets.auto",
]
"""What every start imports, at once or a little later."""

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(PRELOADED)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Gofer:
    """One process."""

    def __init__(self, environment: Mapping[str, str], *roles: str, log: Path, crash_at: str = "") -> None:
        self.log = log
        given = {**environment, **({"GOFER_CRASH_AT": crash_at} if crash_at else {})}
        log.touch()
        self._seen = log.stat().st_size
        # A daemon, so that whoever forgets it cannot be kept waiting by it.
        self._process = forks.Process(target=_main, args=(given, roles, str(log)), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.exitcode is not None

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def said(self) -> list[dict[str, object]]:
        """The lines logged since it was started, by others beside it too."""
        with self.log.open() as file:
            file.seek(self._seen)
            return [json.loads(line) for line in file if line.startswith("{") and line.endswith("\n")]

    @property
    def ready(self) -> bool:
        """Whether it ever was."""
        return any(line["event"] == "process.ready" and line["pid"] == self.pid for line in self.said())

    def wait_until_ready(self) -> Gofer:
        """Returns also when it ended before."""
        deadline = Deadline(PATIENCE)
        while not self.ended and not self.ready:
            assert deadline.left > 0, self.log.read_text()
            time.sleep(0.01)
        return self

    def signal(self, number: signal.Signals) -> None:
        if not self.ended:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        self._process.join(patience(PATIENCE))
        assert self._process.exitcode is not None, f"still running: {self.log.read_text()[-2000:]}"
        return self._process.exitcode

    def stop(self) -> int:
        """End it as an operator would; 0 when it ended well, which one that is still starting need not."""
        self.signal(signal.SIGTERM)
        code = self.wait()
        return 0 if code == -signal.SIGTERM and not self.ready else code

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.signal(signal.SIGKILL)
        self._process.join()


def _main(environment: Mapping[str, str], roles: tuple[str, ...], log: str) -> None:
    become(environment, log)

    import gofer.serve
    from gofer.settings import load_settings

    gofer.serve.run(load_settings(), *roles)


def become(environment: Mapping[str, str], log: str) -> None:
    """Turn a process just forked into one that was started with this environment and writes to this log."""
    if sys.platform == "linux":
        # Whoever started it may be killed too; then it must not live on.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in [name for name in os.environ if name.startswith("GOFER_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.path.append(str(PLUGIN))

    import gofer.crash

    # It read the environment when it was imported, before the fork.
    importlib.reload(gofer.crash)
