"""What is kept of a session, from which it can be found or brought back: by its caller, and on this machine beside the
control directories, for a reaper to find."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.kernel import closing
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits

VERSION = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """Which living thing a session is. A bare pid proves nothing, so start time and boot go with it."""

    pid: int = 0
    """The process that is PID 1 inside, as this machine numbers it."""
    start: int = 0
    boot: str = ""
    uid: int = -1
    gid: int = -1
    control: str = ""
    """The host's side of the control directory."""
    handle: str = ""
    """A container's or remote machine's own name for it, where there is no pid."""


@dataclass(frozen=True, slots=True)
class Record:
    """One session, as plain data that survives the server and a reboot."""

    id: str
    provider: str
    reference: Reference
    directory: str
    """Where the workspace, the snapshot and the outputs are kept."""
    limits: Limits
    level: Level
    created: float
    last_used: float
    last_command: int = 0
    running: bool = False
    """Whether `last_command` had not ended when this was written."""
    deadline: float | None = None
    background: tuple[str, ...] = ()
    """Command lines of what ran on after its command had ended."""
    ephemeral: bool = False
    """Whether closing removes the directory."""
    environment: dict[str, str] = field(default_factory=dict)
    readonly: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As one line of JSON."""
        data = _plain(self) | {
            "version": VERSION,
            "level": self.level.name,
            "reference": _plain(self.reference),
            "limits": _plain(self.limits),
        }
        return json.dumps(data, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """From what `to_json` wrote, or InvalidInput."""
        try:
            data = json.loads(text)
            if data.get("version") != VERSION:
                raise InvalidInput(f"record version {data.get('version')!r} is not {VERSION}")
            known = {field.name for field in fields(cls)}
            values = {name: value for name, value in data.items() if name in known}
            values["reference"] = Reference(**data["reference"])
            values["limits"] = Limits.from_json(data["limits"])
            values["level"] = Level[data["level"]]
            for name in ("background", "readonly"):
                values[name] = tuple(data[name])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"not a sandbox record: {error}") from error


def _plain(value: Record | Reference | Limits) -> dict[str, Any]:
    """The fields as they are; `asdict` copies all that is in them, and a record is written at every start."""
    return {one.name: getattr(value, one.name) for one in fields(value)}


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
    with closing(fd):
        os.write(fd, record.to_json().encode())
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

    with closing(os.open(base / "moving", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def every(base: Path) -> Iterator[Record]:
    """All records that can be read."""
    for path in sorted((base / "records").glob("*.json")):
        with contextlib.suppress(OSError, InvalidInput):
            yield Record.from_json(path.read_text())
