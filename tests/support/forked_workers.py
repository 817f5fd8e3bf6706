"""The workers of a test run, forked from one process that has imported every test.

To import Gofer, its libraries and the tests takes five seconds of a core, which every worker of pytest-xdist would
spend again. What xdist starts as a worker (`python … -c …`) is this file instead: it hands its input and output to the
process that has all imported, which forks the worker, and it waits for the worker's end.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

IMPORTED_LATER = ("alembic.command", "anthropic", "github", "openai", "uvicorn.protocols.websockets.auto")
"""What tests import while they run, and most workers of a whole run do."""


class Nursery:
    """The process that workers are forked from."""

    def __init__(self, config: pytest.Config, folder: str) -> None:
        address = f"{folder}/workers.sock"
        later = IMPORTED_LATER if config.args == config.getini("testpaths") else ()
        command = [sys.executable, __file__, address, ",".join(later), *config.args]
        self._process = subprocess.Popen(
            command, cwd=config.invocation_params.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.read(1)  # it listens, or has ended
        self.python = shlex.join([sys.executable, "-I", "-S", __file__, address])
        """What xdist starts in the place of Python."""

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def hand_over(address: str) -> None:
    """Have a worker forked that reads and writes what this process would, and wait until it has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"?"], [0, 1])
        os.close(0)  # so that xdist notices once the worker has closed them
        os.close(1)
        connection.recv(1)


# What follows runs in the process that has all imported.


def serve(address: str, later: str, arguments: list[str]) -> None:
    """Fork a worker for each that connects. Returns in the worker, with the input and output that it was given."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b"!")
        os.dup2(0, 1)  # nobody reads what else pytest prints here
        _prepare(later, arguments)
        while True:
            connection, _ = listening.accept()
            streams = socket.recv_fds(connection, 1, 2)[1]
            if not os.fork():
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                connection.detach()  # stays open for as long as the worker lives
                return
            connection.close()
            for stream in streams:
                os.close(stream)


def _prepare(later: str, arguments: list[str]) -> None:
    """Import what pytest would, and make what every worker copies."""
    import gc
    import importlib

    import pytest

    # `-s`: what is imported may keep the `sys.stderr` it finds.
    options = ["--collect-only", "-qqq", "-s", "-p", "no:cacheprovider"]
    pytest.main([*options, *arguments], plugins=[ImportsAlone(bool(later))])
    from support.sqlite_template import make_templates

    make_templates()
    if later:  # nearly every worker will need them
        from support.process_speed import compile_templates

        compile_templates()
        for name in later.split(","):
            importlib.import_module(name)
        # Hypothesis looks at every character there is, and keeps what it found in a file, which a fresh clone has not.
        importlib.import_module("hypothesis.strategies").text().validate()
    gc.collect()
    gc.freeze()


class ImportsAlone:
    """A plugin of pytest that has it import the tests' modules and not look for tests in them: each worker does."""

    def __init__(self, all_of_them: bool) -> None:
        self._all_of_them = all_of_them

    def pytest_collection(self) -> None:
        if self._all_of_them:
            _start_forkserver()  # it imports on another core meanwhile

    def pytest_pycollect_makeitem(self) -> list[Any]:
        return []


def _start_forkserver() -> None:
    """The process that tests fork `gofer serve` from (`e2e/process.py`): it imports Gofer once for all workers, and
    has lived as a server once."""
    from multiprocessing import forkserver

    from e2e.process import PRELOADED

    forkserver.set_forkserver_preload([*PRELOADED, "anthropic", "e2e.warm_up"])
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (f"{os.getcwd()}/tests", before) if path)
    forkserver.ensure_running()
    os.environ["PYTHONPATH"] = before
    # A worker is not its parent, and may not look whether it still runs.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


def _run_as_worker() -> None:
    from types import ModuleType

    from execnet.gateway_io import popen_bootstrapline

    sys.stdin = os.fdopen(0, closefd=False)
    sys.modules["__main__"] = ModuleType("__main__")
    exec(popen_bootstrapline, vars(sys.modules["__main__"]))


if __name__ == "__main__":
    if sys.argv[2] == "-u":  # by xdist
        hand_over(sys.argv[1])
    else:
        sys.path[0] = os.getcwd()
        serve(sys.argv[1], sys.argv[2], sys.argv[3:])
        _run_as_worker()
