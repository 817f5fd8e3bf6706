"""What the shell and its keeper say, as values, taken out of what they write.

A frame begins and ends with a zero byte, so that one that was cut off spoils no other. Whoever writes may be hostile:
what is kept is bounded, and what is no frame is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ROOM = 80 * 1024
"""What is looked at of one snapshot."""
_FRAME_MAXIMUM = 16 * 1024
_FEW = 32
_SECTIONS = b"OTLPWAFVN"


class Started(NamedTuple):
    """The keeper has started a shell; `pid` is what it is called inside."""

    pid: int


class Ready(NamedTuple):
    """A shell is ready; `pid` is what it calls itself, `cwd` where it stands, `limits` what `ulimit` says."""

    pid: int
    cwd: str = ""
    limits: bytes = b""


class Done(NamedTuple):
    """A command ended. A negative number is a command that had begun before its line was given again: how it ended is
    not known."""

    number: int
    exit_code: int
    cwd: str


class Died(NamedTuple):
    """The shell ended; the keeper waits. `unread` is a line the dead shell never read."""

    death: int
    exit_code: int
    unread: bytes


class Snapped(NamedTuple):
    """The shell's state, section by section. `cut` names those that were longer than is looked at."""

    at_exit: bool
    sections: dict[bytes, bytes]
    cut: bytes = b""
    after: int = 0
    """The command after which it was taken, in one that the server kept."""


Frame = Started | Ready | Done | Died | Snapped


@dataclass(slots=True)
class Decoder:
    """Takes one speaker's bytes apart, as they come."""

    _partial: bytearray = field(default_factory=bytearray)
    _sections: dict[bytes, bytes] | None = None
    """Of the snapshot that is coming in."""
    _kept: int = 0
    _cut: bytes = b""

    @property
    def amid_snapshot(self) -> bool:
        """Whether the rest of a snapshot is still to come from a shell that lives on."""
        return self._sections is not None and not self._sections[b"U"].startswith(b"e")

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with this. A report comes alone, and is what is waited for."""
        if data[:2] == b"\0D" and data.find(b"\0", 2) == len(data) - 1 and not self._partial:
            self._sections = None
            if done := parse(data[1:-1]):
                yield done
            return
        *whole, rest = data.split(b"\0")
        for piece in whole:
            self._add(piece)
            frame, self._partial = bytes(self._partial), bytearray()
            if frame:
                yield from self._frame(frame)
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        """What is beyond the bound is dropped as it comes; of a section its letter stays."""
        section = self._sections is not None and (self._partial[:1] or piece[:1]) in _SECTIONS
        room = (max(1, ROOM - self._kept) if section else _FRAME_MAXIMUM) - len(self._partial)
        if len(piece) > room:
            letter = bytes(self._partial[:1] or piece[:1])
            self._cut += letter if section and letter not in self._cut else b""
            piece = piece[: max(0, room)]
        self._partial += piece

    def _frame(self, frame: bytes) -> Iterator[Frame]:
        kind, rest = frame[:1], frame[1:]
        if kind == b"U" and rest[:1] in (b"i", b"e"):
            self._sections, self._kept, self._cut = {b"U": rest}, len(rest), b""
        elif kind in _SECTIONS and self._sections is not None:
            self._sections[kind] = rest
            self._kept += len(rest)
        elif kind == b"E" and self._sections is not None:
            sections, self._sections = self._sections, None
            after = int(rest) if rest.isdigit() and len(rest) < 20 else 0
            yield Snapped(sections[b"U"][:1] == b"e", sections, self._cut, after)
        else:
            self._sections = None
            if (found := parse(frame)) is not None:
                yield found


def few(data: bytes) -> bytes:
    """As many frames of a piece as are acted on at a time. Two snapshots and a report have no more. Whoever is inside
    can write thousands, and one may take the server's loop a fifth of a millisecond."""
    if data.count(b"\0") <= _FEW:
        return data
    end = -1
    for _ in range(_FEW):
        end = data.index(b"\0", end + 1)
    return data[: end + 1]


def parse(data: bytes) -> Started | Ready | Done | Died | None:
    """A frame that is no section of a snapshot, or None: whoever is inside can write anything."""
    kind, rest = data[:1], data[1:]
    try:
        if kind == b"D":
            number, code, cwd = rest.split(b" ", 2)
            return Done(int(number), int(code), cwd.decode("utf-8", "replace"))
        if kind == b"X":
            death, code, unread = rest.split(b" ", 2)
            return Died(int(death), int(code), unread)
        if kind == b"R":
            said, _, cwd = rest.partition(b"\n\n")
            pid, _, limits = said.partition(b"\n")
            return Ready(int(pid), cwd.decode("utf-8", "replace"), limits)
        if kind == b"S":
            return Started(int(rest))
    except ValueError:
        pass
    return None
