"""The records of this machine's sessions, beside their control directories, for a reaper to find."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.record import Record


def put(base: Path, record: Record) -> None:
    """Keep a record, whole or not at all."""
    place = f"{base}/records"
    temporary = f"{place}/{record.id}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(place, 0o700, exist_ok=True)
        fd = os.open(temporary, flags, 0o600)
    try:
        os.write(fd, record.to_json().encode())
    finally:
        os.close(fd)
    os.replace(temporary, f"{place}/{record.id}.json")


def remove(base: Path, session: str) -> None:
    """Forget a record."""
    (base / "records" / f"{session}.json").unlink(missing_ok=True)


def get(base: Path, session: str) -> Record | None:
    """A session's record, if it has one that can be read."""
    try:
        return Record.from_json((base / "records" / f"{session}.json").read_text())
    except (OSError, InvalidInput):
        return None


@contextlib.contextmanager
def moving(base: Path) -> Iterator[None]:
    """While this is held, no program of this user moves a session to another directory, or takes one for gone."""
    import fcntl  # not there on every system that may import this

    fd = os.open(base / "moving", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def known(base: Path, session: str) -> bool:
    """Whether there is a record, readable or not."""
    return (base / "records" / f"{session}.json").exists()


def every(base: Path) -> Iterator[Record]:
    """All records that can be read."""
    for path in sorted((base / "records").glob("*.json")):
        with contextlib.suppress(OSError, InvalidInput):
            yield Record.from_json(path.read_text())
