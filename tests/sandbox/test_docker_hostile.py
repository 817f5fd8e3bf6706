"""Every sixth of the hostile commands once more, in containers of the stand-in engine, or of a real one."""

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


@pytest.fixture(scope="module")
def provider() -> Iterator[Docker]:
    with tempfile.TemporaryDirectory() as place, docker_engine(Path(place)) as engine:
        yield Docker("debian:12", engine=os.environ.get("SANDBOX_TEST_ENGINE") or engine.address)


@pytest.mark.parametrize("row", ROWS[::6], ids=lambda row: row.name)
async def test_row(row: Row, provider: Docker) -> None:
    await test_hostile.test_row(row, provider)  # type: ignore[arg-type]
