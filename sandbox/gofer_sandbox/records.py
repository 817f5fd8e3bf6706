"""The records of this machine's sessions, beside their control directories, for a reaper to find."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gofer_sandbox import runtime
from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.record import Record


def _directory() -> Path:
    place = runtime.directory() / "records"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def put(record: Record) -> None:
    """Keep a record, whole or not at all."""
    path = _directory() / f"{record.id}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(record.to_json())
    temporary.replace(path)


def remove(session: str) -> None:
    """Forget a record."""
    (_directory() / f"{session}.json").unlink(missing_ok=True)


def every() -> Iterator[Record]:
    """All records that can be read."""
    for path in sorted(_directory().glob("*.json")):
        with contextlib.suppress(OSError, InvalidInput):
            yield Record.from_json(path.read_text())
