"""The supervisor: what it takes beside a bare interpreter, and how long nobody is answered while a release is deployed,
taken back or has crashed, beside one start of the same server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Row
from gofer.releases.lifecycle import approve
from gofer.releases.source import release_source, write_source
from gofer.releases.stage import build_release, stage
from gofer.releases.trial import compile_release
from gofer_supervisor.home import Home, Release

GROUP = "supervisor"
ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 120.0
BETWEEN_REQUESTS = 0.01
REVERT = 10.0
"""Seconds beyond one start in which a release that fails has to be replaced."""
LONG = 0.5
"""Seconds without an answer that show that something was started again."""


async def main(quick: bool) -> list[Row]:
    """The rows."""
    return await asyncio.to_thread(_rows, 5.0 if quick else 60.0)


def _rows(idle: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(f"{folder}/home")
        build = _stage(home, Path(folder))
        with _gofer_up(Path(folder)) as (supervisor, url):
            start = _until_answered(url)
            memory, share = _memory(supervisor.pid), _share_of_core(supervisor.pid, idle)
            deploy, roll_back = (
                {"do": what, "build": build, "by": "bench"} for what in ("deploy", "rollback")
            )
            deployed = _longest_silence(url, home, lambda: home.ask(deploy))
            back = _longest_silence(url, home, lambda: home.ask(roll_back))
            pid = _only_process(url, home)
            killed = _longest_silence(url, home, lambda: os.kill(pid, signal.SIGKILL))
            fail = {"do": "deploy", "build": _stage_failing(home, Path(folder)), "by": "bench"}
            failed = _longest_silence(url, home, lambda: home.ask(fail))
    return [
        Row(
            GROUP,
            "memory of the supervisor",
            memory,
            "MiB",
            "a bare interpreter",
            _bare_memory(),
            at_most=1.6,
        ),
        Row(GROUP, "share of a core, idle", share, "%", at_most=0.2),
        Row(GROUP, "longest wait while a release is deployed", deployed, "s", "one start", start, at_most=2),
        Row(GROUP, "longest wait while it is taken back", back, "s", "one start", start, at_most=2),
        Row(
            GROUP,
            "longest wait when a release fails and the old one serves again",
            failed,
            "s",
            f"one start plus {REVERT:g} s",
            start + REVERT,
            at_most=1,
        ),
        Row(GROUP, "longest wait when the server is killed", killed, "s", "one start", start, at_most=2),
    ]


def _stage(home: Home, folder: Path, source: Path = ROOT) -> str:
    """This very source as a release, so that what is compared is the same."""
    home.prepare()
    wheel, _ = build_release(source, folder / f"dist-{source.name}")
    build = stage(home, wheel, _compiled, unsigned=True).build
    approve(home, build, by="bench")
    return build


def _compiled(release: Release) -> str:
    compile_release(release)
    return "not checked"


def _stage_failing(home: Home, folder: Path) -> str:
    """The same source with a server that ends as it starts."""
    files = release_source()
    files["platform/gofer/serve.py"] += b"\n\ndef run(*_: object) -> None:\n    raise SystemExit(1)\n"
    write_source(files, folder / "failing")
    return _stage(home, folder, folder / "failing")


@contextmanager
def _gofer_up(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GOFER_")},
        "GOFER_DATA_DIR": str(folder / "data"),
        "GOFER_HOME": str(folder / "home"),
        "GOFER_PORT": str(port),
    }
    command = [sys.executable, "-m", "gofer", "up", "--probation", "0"]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield running, f"http://127.0.0.1:{port}/healthz"
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(TIMEOUT)


def _ask(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _until_answered(url: str) -> float:
    """Seconds of one start: the first answer after the port is open."""
    began = time.perf_counter()
    while not _ask(url):
        assert time.perf_counter() - began < TIMEOUT
        time.sleep(BETWEEN_REQUESTS)
    return time.perf_counter() - began


def _longest_silence(url: str, home: Home, cause: Callable[[], object]) -> float:
    """The longest time between two answers to somebody who asks all the time, from a cause on until all is calm."""
    over, longest = threading.Event(), [0.0]

    def visit() -> None:
        last = time.perf_counter()
        while not over.is_set():
            assert _ask(url), "somebody was refused"
            now = time.perf_counter()
            longest[0], last = max(longest[0], now - last), now
            time.sleep(BETWEEN_REQUESTS)

    visitor = threading.Thread(target=visit)
    visitor.start()
    time.sleep(0.5)
    cause()
    deadline = time.perf_counter() + TIMEOUT
    while time.perf_counter() < deadline:
        time.sleep(0.5)
        if home.asked() is None and home.load().trial is None and longest[0] > LONG:
            break
    time.sleep(2)
    over.set()
    visitor.join()
    return longest[0]


def _only_process(url: str, home: Home) -> int:
    """The process that serves, once it is the only one and stays so."""
    deadline = time.perf_counter() + TIMEOUT
    while time.perf_counter() < deadline:
        before = list(home.load().processes)
        time.sleep(3)
        if len(before) == 1 and list(home.load().processes) == before and _ask(url):
            return int(before[0])
    raise AssertionError("more than one process runs")


def _memory(pid: int) -> float:
    """MiB of a process's resident memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def _bare_memory() -> float:
    bare = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    time.sleep(1)
    try:
        return _memory(bare.pid)
    finally:
        bare.communicate(b"\n")


def _share_of_core(pid: int, seconds: float) -> float:
    """Percent of one core that a process uses."""

    def used() -> float:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds * 100
