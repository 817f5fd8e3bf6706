"""Every sixth of the hostile commands once more, in containers of the stand-in engine, or of a real one, and those that
only named FIFOs allow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox.docker import Docker
from sandbox import test_hostile
from sandbox.docker_engine import docker_engine
from sandbox.test_hostile import ROWS, Row

# What can be done to a shell that is spoken with over named FIFOs, and to no other.
FIFO_ROWS = [
    Row("lines of its own in the input", "exec 5<>/run/s/in; echo 'INJECTED=1' >&5; echo on", 0, has="on"),
    Row("input full of lines",
        "python3 -c \"import os; fd = os.open('/run/s/in', os.O_WRONLY | os.O_NONBLOCK)\nwhile True: "
        "os.write(fd, b':\\n' * 2000)\" 2>&1 | tail -1", 0, has="BlockingIOError"),
    Row("input full of lines that take long",
        "python3 -c \"import os; fd = os.open('/run/s/in', os.O_WRONLY | os.O_NONBLOCK)\n"
        "for word in [b'sleep 0.35;:'] * 4 + [b':'] * 99: os.write(fd, word.ljust(1023, b'x') + b'\\n')\""
        " 2>&1 | tail -1", 0, has="BlockingIOError"),
    Row("eats its input", "timeout 0.2 cat /run/s/in", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Iterator[Docker]:
    with tempfile.TemporaryDirectory() as place, docker_engine(Path(place)) as engine:
        yield Docker("debian:12", engine=os.environ.get("SANDBOX_TEST_ENGINE") or engine.address)


@pytest.mark.slow
@pytest.mark.parametrize("row", [*ROWS[::6], *FIFO_ROWS], ids=lambda row: row.name)
async def test_row(row: Row, provider: Docker) -> None:
    await test_hostile.test_row(row, provider)  # type: ignore[arg-type]
