"""A test run leaves nothing running. Shells outlive their server by design, and so do those of a test that ends in the
middle of something; they are ended when the whole run is over.

A run that is killed cannot do that itself: so a minder does, a process that reads a pipe which the run holds open.

Whose a process is, is told by something that all a run starts inherits, whoever becomes its parent later and whatever
environment it is given: a limit that nothing here ever comes near."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIMIT, _NAME = resource.RLIMIT_MSGQUEUE, "Max msgqueue size"
_MOST = 800_000


def mark() -> None:
    """Mark this process, and with it all that it will start."""
    own = _MOST - os.getpid() % (_MOST // 2)
    most = resource.getrlimit(_LIMIT)[1]
    if (
        most != resource.RLIM_INFINITY and own >= most
    ):  # to raise it takes a right that not even every root has
        own = most - 1 - os.getpid() % 1000
    resource.setrlimit(_LIMIT, (own, own))


def mind() -> None:
    """Have all that this process will start ended after it, however it ends."""
    reading, _held_open = os.pipe()
    nowhere = subprocess.DEVNULL
    subprocess.run(
        [sys.executable, "-I", __file__], stdin=reading, stdout=nowhere, stderr=nowhere, check=True
    )
    os.close(reading)


def still_running(within: float = 0.0) -> list[int]:
    """Processes of sandboxes, or of shells without one, which this run has started and which do not end in time."""
    until = time.monotonic() + within
    while (found := _marked(_is_session)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def end(left: list[int]) -> None:
    """Kill what is left."""
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(wanted: Callable[[list[bytes]], bool]) -> list[int]:
    mark = _mark(Path("/proc/self"))
    places = (place for place in Path("/proc").iterdir() if place.name.isdigit())
    return [int(place.name) for place in places if wanted(_words(place)) and _mark(place) == mark]


def _is_session(words: list[bytes]) -> bool:
    return words[0].endswith(b"bwrap") or (words[0].endswith(b"bash") and b"--noprofile" in words[:2])


def _ends_by_itself(words: list[bytes]) -> bool:
    """PostgreSQL and Valkey, whose own minders see that nobody uses them any more; and what is ending."""
    return not words[0] or any(word.endswith(b"/servers.py") or b"/gofer-" in word for word in words[:3])


def _words(place: Path) -> list[bytes]:
    try:
        return (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return [b""]


def _mark(place: Path) -> str:
    try:
        lines = (place / "limits").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(_NAME)), "")


# What follows runs in the minder.

SELF = Path("/proc/self")
RECORDS = Path(f"/dev/shm/gofer-sandbox-{os.geteuid()}/records")
PATIENCE = 10
"""Seconds that the processes of a run have to end by themselves once it has ended."""


def _end_what_is_left() -> None:
    while os.read(0, 1):
        pass
    own = [
        record for record in _records() if _mark(Path(f"/proc/{record['reference']['pid']}")) == _mark(SELF)
    ]
    until = time.monotonic() + PATIENCE
    while _others() and time.monotonic() < until:
        end(still_running())
        time.sleep(0.2)
    while others := _others():
        end(others)
        time.sleep(0.2)
    for record in own + _records():
        if record in own or (record["ephemeral"] is False and not Path(record["directory"]).exists()):
            _remove(record)


def _records() -> list[dict[str, Any]]:
    """What sandboxes have put down of the sessions that began in folders of tests or in ones of their own."""
    found = []
    for path in RECORDS.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            found.append({**json.loads(path.read_bytes()), "path": path})
    return [record for record in found if "/pytest-of-" in record["directory"] or record["ephemeral"]]


def _remove(record: dict[str, Any]) -> None:
    shutil.rmtree(record["reference"]["control"], ignore_errors=True)
    record["path"].unlink(missing_ok=True)
    if record["ephemeral"]:
        shutil.rmtree(record["directory"], ignore_errors=True)


def _others() -> list[int]:
    return [pid for pid in _marked(lambda words: not _ends_by_itself(words)) if pid != os.getpid()]


if __name__ == "__main__" and not os.fork():
    os.setsid()
    _end_what_is_left()
