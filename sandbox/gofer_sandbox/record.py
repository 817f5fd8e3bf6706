"""What the caller keeps of a session, and from which it can be found or brought back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from gofer_sandbox.errors import InvalidInput
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
            return cls._from_data(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"not a sandbox record: {error}") from error

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> Record:
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


def _plain(value: Record | Reference | Limits) -> dict[str, Any]:
    """The fields as they are; `asdict` copies all that is in them, and a record is written at every start."""
    return {one.name: getattr(value, one.name) for one in fields(value)}
