"""What came of one command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Result(NamedTuple):
    """One command's end, with everything a user or a model should know about it."""

    number: int
    exit_code: int | None
    """None when it could not be learnt: the command's outcome is unknown."""
    output: str
    """Standard output and error in order, or standard output alone when they were kept separate."""
    errors: str
    """Standard error when it was kept separate."""
    cwd: str
    """Where the shell stands now."""
    duration: float
    """Seconds since the command was given to the shell, whichever server that was."""
    timed_out: bool = False
    cancelled: bool = False
    killed: tuple[str, ...] = ()
    """Command lines of the processes that were ended by force."""
    restarted: bool = False
    """The shell ended and a new one with its state took its place."""
    recreated: bool = False
    """The whole sandbox was lost and made again from its files and snapshot."""
    state_lost: bool = False
    """Variables, functions or options this command changed are lost; those from before it are kept. When some were
    too large to keep, `notes` says which."""
    background: tuple[str, ...] = ()
    """Command lines of what is still running."""
    background_lost: tuple[str, ...] = ()
    kept: int = 0
    """Bytes of output in this result."""
    dropped: int = 0
    """Bytes of output that are not in this result."""
    full_output: Path | None = None
    """Where the output is kept, up to a bound, when some of it was dropped here."""
    notes: tuple[str, ...] = ()
    """What happened besides, in plain sentences."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and not self.cancelled


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a kept output."""

    data: bytes
    offset: int
    next_offset: int | None
    """Where to go on, or None at the end."""
    size: int

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 becomes the replacement character."""
        return self.data.decode("utf-8", "replace")
