"""A throw-away Gofer with its own process and data directory, removed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

START_TIMEOUT = 120.0
"""Seconds. A process that dies is noticed at once, so this matters only on very busy machines."""
STOP_TIMEOUT = 30.0


class NotStarted(Exception):
    """The throw-away instance did not come up."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A running throw-away Gofer."""

    url: str
    control: httpx2.AsyncClient
    """Its control API."""
    started_in: float
    """Seconds from nothing to ready."""

    async def ask(self, method: str, path: str, **request: Any) -> Any:
        """A request to the control API that must succeed."""
        response = await self.control.request(method, path, **request)
        response.raise_for_status()
        return response.json()


@contextlib.asynccontextmanager
async def throw_away(**settings: str) -> AsyncIterator[Instance]:
    """Start `gofer serve` on embedded defaults and a free port; end it and remove its data afterwards.

    `port=…` sets the port, when the URL must be known before the start.
    """
    with tempfile.TemporaryDirectory(prefix="gofer-demo-") as folder:
        data = Path(folder)
        with (data / "log").open("wb") as output:
            begun = asyncio.get_running_loop().time()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gofer", "serve"),
                env=_environment(data, settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                transport = httpx2.AsyncHTTPTransport(uds=str(data / "gofer.sock"), verify=False)
                async with httpx2.AsyncClient(
                    transport=transport, base_url="http://gofer/api/v1", timeout=60
                ) as control:
                    url = await _ready(process, control, data / "log")
                    took = asyncio.get_running_loop().time() - begun
                    yield Instance(url, control, took)
            finally:
                await _end(process)


def _environment(data: Path, settings: dict[str, str]) -> dict[str, str]:
    # Nothing of the real installation may reach it, such as its database or its key.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
    given = {f"GOFER_{name.upper()}": value for name, value in settings.items()}
    kept = {
        "GOFER_DATA_DIR": str(data),
        "GOFER_HOST": "127.0.0.1",
        "GOFER_PORT": "0",
        "GOFER_LOG_FORMAT": "json",
        "GOFER_KEEP_SHELLS": "false",
    }
    return {**clean, **kept, **given}


async def _ready(process: asyncio.subprocess.Process, control: httpx2.AsyncClient, output: Path) -> str:
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(httpx2.TransportError):
            status = (await control.get("/status")).json()
            if status.get("url"):
                return str(status["url"])
        await asyncio.sleep(0.02)
    raise NotStarted(f"The throw-away instance did not start: {_last_line(output)}")


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
