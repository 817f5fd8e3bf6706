"""From the command to the first answer over HTTP, and what an idle process takes: beside nanobot's gateway and
OpenClaw's, each in an environment and a home of its own, each with a web chat and without a model that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks import node_peers
from benchmarks.report import Row
from benchmarks.sandbox_peers import Peer

GROUP = "starting"
PATIENCE = 120.0
NOWHERE = "http://127.0.0.1:9"
"""Where whatever wants to call out ends."""
OPENCLAW = node_peers.ROOT / ".bench" / "openclaw"
WANTED = Path(__file__).parent / "node" / "openclaw" / "package.json"


@dataclass(frozen=True)
class Program:
    """A server to start: how, and where its pages are."""

    name: str
    command: Callable[[Path, int], list[str]]
    """From a home and a free port; writes what it must have configured."""
    path: str


@dataclass(frozen=True)
class Figures:
    """Seconds to the first answer, and MiB that its processes have for themselves when idle."""

    start: float
    memory: float


def gofer(home: Path, port: int) -> list[str]:
    """As `make run` starts it."""
    return [sys.executable, "-m", "gofer", "serve", "--port", str(port)]


def nanobot(home: Path, port: int) -> list[str]:
    """Its gateway with the channel that its own web page speaks to."""
    settings = {
        "agents": {"defaults": {"model": "openai/none", "provider": "custom"}},
        "providers": {"custom": {"apiKey": "none", "apiBase": f"{NOWHERE}/v1"}},
        "channels": {"websocket": {"enabled": True, "host": "127.0.0.1", "port": port}},
    }
    (home / ".nanobot").mkdir(exist_ok=True)
    (home / ".nanobot" / "config.json").write_text(json.dumps(settings))
    python = Peer("nanobot", "nanobot-ai", (3, 11), "")._environment().absolute()
    return [str(python), "-m", "nanobot", "gateway", "--foreground", "--port", str(_free_port())]


def openclaw(home: Path, port: int) -> list[str]:
    """Its gateway, which serves its control page."""
    entry = node_peers.install(WANTED, OPENCLAW) / "node_modules" / "openclaw" / "openclaw.mjs"
    said = ["--allow-unconfigured", "--auth", "none", "--bind", "loopback", "--port", str(port)]
    return [str(node_peers.NODE), str(entry), "gateway", "run", *said]


OURS = Program("Gofer", gofer, "/login")
PEERS = (Program("nanobot's gateway", nanobot, "/"), Program("OpenClaw's gateway", openclaw, "/"))


async def main(quick: bool) -> list[Row]:
    """Start each in turn, several times."""
    rounds, idle = (2, 3.0) if quick else (5, 15.0)
    ours = await asyncio.to_thread(measure, OURS, rounds, idle)
    assert isinstance(ours, Figures), ours
    rows = []
    for peer in PEERS:
        theirs = await asyncio.to_thread(measure, peer, rounds, idle)
        if isinstance(theirs, str):
            rows.append(Row(GROUP, "start to the first page", ours.start, "s", peer.name, note=theirs))
            continue
        rows += [
            Row(GROUP, "start to the first page", ours.start, "s", peer.name, theirs.start, at_most=1.2),
            Row(GROUP, "memory when idle", ours.memory, "MiB", peer.name, theirs.memory, at_most=1),
        ]
    return rows


def measure(program: Program, rounds: int, idle: float) -> Figures | str:
    """The quickest start after a first one that fills the home, and the memory of that; or why there is none."""
    found = measure_in_turns([program], rounds, idle)
    return found if isinstance(found, str) else found[0]


def measure_in_turns(programs: Sequence[Program], rounds: int, idle: float) -> list[Figures] | str:
    """The same for several, one start of each in turn, so that what disturbs one disturbs the others."""
    found: list[list[Figures]] = [[] for _ in programs]
    try:
        with contextlib.ExitStack() as homes:
            places = [
                homes.enter_context(
                    tempfile.TemporaryDirectory("", "gofer-bench-", ignore_cleanup_errors=True)
                )
                for _ in programs
            ]
            for number in range(rounds + 1):
                for program, place, figures in zip(programs, places, found, strict=True):
                    figures.append(_once(program, Path(place), idle if number == rounds else 0))
    except (OSError, subprocess.SubprocessError, node_peers.NotInstalled, LookupError) as error:
        return f"not measured: {error}"
    return [Figures(min(each.start for each in figures[1:]), figures[-1].memory) for figures in found]


def _once(program: Program, home: Path, idle: float) -> Figures:
    port = _free_port()
    command = program.command(home, port)
    environment = {
        # Without PYTHONDONTWRITEBYTECODE and its like: a peer was compiled when it was installed, and the first start
        # compiles us, as it does for people.
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GOFER_", "XDG_", "PYTHON"))
        },
        "HOME": str(home),
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1",
    }
    with open(home / "log", "ab") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _await_page(process, f"http://127.0.0.1:{port}{program.path}", home)
        started = time.perf_counter() - began
        time.sleep(idle)
        return Figures(started, sum(_own_memory(pid) for pid in _family(process.pid)) / 2**20)
    finally:
        _end(process)


def _await_page(process: subprocess.Popen[bytes], url: str, home: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    with httpx2.Client(trust_env=False, timeout=10) as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.01)
    said = (home / "log").read_text(errors="replace").strip().splitlines()
    raise OSError(f"it did not answer: {said[-1][:100] if said else 'it said nothing'}")


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _own_memory(pid: int) -> int:
    """Bytes, of what is shared its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
