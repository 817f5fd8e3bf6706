"""What the shell and its keeper say, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """A command ended."""

    number: int
    exit_code: int
    cwd: str


@dataclass(frozen=True, slots=True)
class Died:
    """The shell ended; the keeper waits. `unread` is a line the dead shell never read."""

    death: int
    exit_code: int
    unread: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """A shell is ready; `pid` is what it calls itself, `cwd` where it stands."""

    pid: int
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Snapped:
    """A snapshot was left, in one of a few slots: the shell may be at the next before this one is read."""

    slot: str


SLOTS = (b"0", b"1", b"e", b"i")
"""Of commands with even and odd numbers, of a shell that ends, of one that is idle."""
AT_EXIT, IDLE = "e", "i"

Frame = Done | Died | Ready | Snapped


def parse(data: bytes) -> Frame | None:
    """The frame, or None: whoever is inside can write anything to the status FIFO."""
    kind, rest = data[:1], data[1:]
    try:
        if kind == b"D":
            number, code, cwd = rest.split(b" ", 2)
            return Done(int(number), int(code), cwd.decode("utf-8", "replace"))
        if kind == b"X":
            death, code, unread = rest.split(b" ", 2)
            return Died(int(death), int(code), unread)
        if kind == b"R":
            pid, _, cwd = rest.partition(b" ")
            return Ready(int(pid), cwd.decode("utf-8", "replace"))
    except ValueError:
        return None
    return Snapped(rest.decode()) if kind == b"P" and rest in SLOTS else None
