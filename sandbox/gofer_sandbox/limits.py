"""What one session may use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from gofer_sandbox.errors import InvalidInput

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

RESERVE = 1 * GIB
"""Free space of the machine below which no workspace may grow, unless a provider is told otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one session. Sizes are in bytes, times in seconds."""

    memory: int = 1 * GIB
    """All processes together where the machine has cgroups, else each process by itself."""
    cpus: float = 1.0
    """Processors' worth of time; needs cgroups."""
    processes: int = 256
    file_size: int = 1 * GIB
    """Largest single file."""
    open_files: int = 1024
    disk: int = 2 * GIB
    """Everything in the workspace."""
    files: int = 200_000
    """Number of files and directories in the workspace."""
    tmp: int = 128 * MIB
    """Size of /tmp, which lives in memory: keep it at most a quarter of `memory`."""
    shm: int = 32 * MIB
    seconds: float = 3600.0
    """The longest any command may run, whatever its caller asks for."""
    idle: float = 24 * 3600.0
    """A session nobody used for so long may be reaped."""
    output: int = 64 * KIB
    """What a result keeps: half from the beginning, half from the end."""
    spool: int = 10 * MIB
    """What is kept on disk of one command's output."""
    spools: int = 64 * MIB
    """What is kept on disk of all outputs of the session."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**62:
                raise InvalidInput(f"limit {field.name!r} must be a positive number, not {value!r}")
            if field.type == "int" and not isinstance(value, int):
                raise InvalidInput(f"limit {field.name!r} must be a whole number, not {value!r}")
        if self.processes < 8:
            raise InvalidInput("limit 'processes' must be at least 8: the session itself needs a few")
        if self.memory < 16 * MIB:
            raise InvalidInput("limit 'memory' must be at least 16 MiB")
        if (self.tmp + self.shm) * 2 > self.memory:
            raise InvalidInput("limits 'tmp' and 'shm' live in memory: together at most half of 'memory'")

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Limits:
        """From plain data; limits a later version added take their defaults, unknown ones are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
