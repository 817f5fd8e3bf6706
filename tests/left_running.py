"""A test run leaves nothing running. Shells outlive their server by design, and so do those of a test that ends in the
middle of something; they are ended when the whole run is over.

Whose a process is, is told by something that all a run starts inherits, whoever becomes its parent later and whatever
environment it is given: a limit that nothing here ever comes near."""

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


def still_running(within: float = 0.0) -> list[int]:
    """Processes of sandboxes, or of shells without one, which this run has started and which do not end in time."""
    until = time.monotonic() + within
    while (found := _marked()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def end(left: list[int]) -> None:
    """Kill what is left."""
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked() -> list[int]:
    mark = _mark(Path("/proc/self"))
    return [
        int(place.name)
        for place in Path("/proc").iterdir()
        if place.name.isdigit() and _is_session(place) and _mark(place) == mark
    ]


def _is_session(place: Path) -> bool:
    try:
        words = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"bwrap") or (words[0].endswith(b"bash") and b"--noprofile" in words[:2])


def _mark(place: Path) -> str:
    try:
        lines = (place / "limits").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(_NAME)), "")
