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
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
    temporary = f"{place}/{record.id}.{os.getpid()}"
    with open(temporary, "wb", 0) as file:
        file.write(record.to_json().encode())
    os.replace(temporary, f"{place}/{record.id}.json")


def remove(base: Path, session: str) -> None:
    """Forget a record."""
    (base / "records" / f"{session}.json").unlink(missing_ok=True)


def known(base: Path, session: str) -> bool:
    """Whether there is a record, readable or not."""
    return (base / "records" / f"{session}.json").exists()


def every(base: Path) -> Iterator[Record]:
    """All records that can be read."""
    for path in sorted((base / "records").glob("*.json")):
        with contextlib.suppress(OSError, InvalidInput):
            yield Record.from_json(path.read_text())
