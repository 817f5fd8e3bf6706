from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.releases import Supervised, supervised


@pytest.fixture
def gofer(tmp_path: Path) -> Iterator[Supervised]:
    """A home with releases, and the supervisor over them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with supervised(tmp_path, port) as one:
        yield one
