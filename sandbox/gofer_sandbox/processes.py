"""Processes of this machine, named so that a reused pid is never taken for the old one."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from gofer_sandbox.kernel import closing
from gofer_sandbox.provider import Process

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # Windows imports this too
_COMMAND_SHOWN = 200
_EXITING = 0x4
"""The kernel's flag of a task that is in the middle of ending."""
_READ_CALL = {"x86_64": b"0", "aarch64": b"63"}.get(platform.machine(), b"")


def clock() -> int:
    """Now, in the unit of a process's start time."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def read_small(path: str) -> bytes:
    """A small file of the kernel's, read without ceremony."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


@cache
def boot_id() -> str:
    """Which boot of the machine this is; the same for as long as we run."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stat(pid: int) -> tuple[int, int] | None:
    """A process's parent and start time; None when it is gone, about to be, or only a zombie. One whose first
    thread has ended while others run on looks like a zombie and is none."""
    try:
        data = read_small(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    ending = fields[0] in b"ZX" or int(fields[6]) & _EXITING
    return None if ending and int(fields[17]) <= 1 else (int(fields[1]), int(fields[19]))


def child_of_ours(pid: int) -> int | None:
    """The process, or else its parent, that is our own child, which only we can reap."""
    above = parent(pid)
    if above == os.getpid():
        return pid
    return above if above and parent(above) == os.getpid() else None


def parent(pid: int) -> int | None:
    """Whose child a process is; None when it is gone."""
    found = stat(pid)
    return found[0] if found else None


def start_time(pid: int) -> int | None:
    """When a process began; None when it is gone."""
    found = stat(pid)
    return found[1] if found else None


def command_line(pid: int) -> str:
    """How a process was called, cut to what is worth showing."""
    try:
        data = read_small(f"/proc/{pid}/cmdline")
    except OSError:
        return ""
    text = data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return text if len(text) <= _COMMAND_SHOWN else text[: _COMMAND_SHOWN - 1] + "…"


def describe(pid: int) -> Process | None:
    """A process as it is now."""
    found = stat(pid)
    return Process(pid, found[0], found[1], command_line(pid)) if found else None


def children(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads made them."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", 0) as file:
                found += map(int, file.read().split())
    return found


class Couple:
    """A process of one thread and a child of its, of one thread too, looked at with every command: so their files
    stay open, which are theirs alone even when their numbers are used again."""

    def __init__(self, parent: int, child: Process) -> None:
        self.child = child
        self._alone = b"%d " % child.pid
        self._above = os.open(f"/proc/{parent}/task/{parent}/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._below = os.open(f"/proc/{child.pid}/task/{child.pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._above)
            raise

    def alone(self) -> bool:
        """Whether the one has no other child, and the other none at all."""
        try:
            return os.pread(self._above, 64, 0) == self._alone and not os.pread(self._below, 64, 0)
        except OSError:
            return False

    def close(self) -> None:
        """Close the files."""
        os.close(self._above)
        os.close(self._below)


def input_of(pid: int) -> str:
    """What a process's standard input is, as it would call it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/0")
    except OSError:
        return ""


def waits_for(pid: int, path: str) -> bool:
    """Whether a process is in the middle of reading its standard input, and that is what is called so."""
    try:
        call, first = read_small(f"/proc/{pid}/syscall").split()[:2]
    except (OSError, ValueError):
        return False
    return (call, first) == (_READ_CALL, b"0x0") and input_of(pid) == path


def open_files(pid: int) -> set[str]:
    """What a process has open, as it would call it."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def descendants(pid: int) -> Iterator[int]:
    """Everything below a process, parents before children."""
    waiting = children(pid)
    seen = {pid}
    while waiting:
        one = waiting.pop(0)
        if one not in seen:
            seen.add(one)
            yield one
            waiting += children(one)


def below(pid: int) -> list[Process]:
    """Everything below a process, described."""
    return [found for one in descendants(pid) if (found := describe(one))]


def inner_pid(pid: int) -> int | None:
    """What a process is called in the innermost pid namespace it is in."""
    try:
        _, found, rest = read_small(f"/proc/{pid}/status").partition(b"\nNSpid:")
    except OSError:
        return None
    return int(rest.partition(b"\n")[0].split()[-1]) if found else None


def send(processes: Iterable[Process], number: int) -> None:
    """Signal those processes that are still the ones described."""
    for process in processes:
        with contextlib.suppress(OSError), closing(os.pidfd_open(process.pid)) as handle:
            if start_time(process.pid) == process.start:
                signal.pidfd_send_signal(handle, number)
