"""A test run must leave no sandbox behind. Whose a process is, is told by something that all a run starts inherits,
whoever becomes its parent later and whatever environment it is given: a limit that nothing here ever comes near."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

_LIMIT, _NAME = resource.RLIMIT_MSGQUEUE, "Max msgqueue size"
_MOST = 800_000


def mark() -> None:
    """Mark this process, and with it all that it will start."""
    own = _MOST - os.getpid() % (_MOST // 2)
    resource.setrlimit(_LIMIT, (own, own))


def still_running(name: str, within: float = 0.0) -> list[int]:
    """Processes of that name which this run has started and which do not end in that time."""
    until = time.monotonic() + within
    while (found := _marked(name)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def of(pid: int) -> str:
    """What a sandbox that is left was started with: where its files are tells which test it belongs to."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"{pid}, which has ended since"
    return f"{pid} {' '.join(word for word in words if word.startswith(('/tmp', '/dev/shm', '/var')))}"


def end(left: list[int]) -> None:
    """Kill what is left."""
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(name: str) -> list[int]:
    mark = _mark(Path("/proc/self"))
    return [
        int(place.name)
        for place in Path("/proc").iterdir()
        if place.name.isdigit() and _called(place) == name and _mark(place) == mark
    ]


def _called(place: Path) -> str:
    try:
        return (place / "comm").read_text().strip()
    except OSError:
        return ""


def _mark(place: Path) -> str:
    try:
        lines = (place / "limits").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(_NAME)), "")
