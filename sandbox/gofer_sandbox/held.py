"""Space held by files without a name: open, mapped, or on their way to another process in a socket's queue.

They take their space until the last of these is gone, and no walk through the workspace finds them. As root every
mapped file is measured whole; an ordinary user's server can only see how much of it is mapped. What waits on a
connection that nobody has accepted cannot be seen at all.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import re
import socket
import stat
import time
from collections.abc import Iterable

from gofer_sandbox import processes

_BUDGET = 1.0
"""Seconds for one look: whoever holds very much is found over several of them."""
_MAPS_MAX = 4 << 20
"""Bytes of one process's maps that are read."""
_QUEUE_MAX = 1024
"""Messages of one queue that are looked at: the kernel lets no user have more descriptors on their way than open."""
_DEPTH_MAX = 4
"""Sockets may wait in the queues of sockets."""
_SO_PEEK_OFF = 42
_DESCRIPTORS_MAX = 253
"""The most that the kernel puts in one message."""
_DELETED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$", re.MULTILINE
)


def unlinked(device: int, pids: Iterable[int]) -> int:
    """Bytes of files without a name on that device that those processes hold."""
    held = _Held(device)
    for pid in random.sample(found := list(pids), len(found)):
        if time.monotonic() > held.until:
            break
        held.look_at(pid)
    return sum(held.sizes.values())


class _Held:
    """What was found, by inode, so that nothing counts twice."""

    def __init__(self, device: int) -> None:
        self.sizes: dict[int, int] = {}
        self.until = time.monotonic() + _BUDGET
        self._device = device

    def look_at(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._open_files(pid)
        with contextlib.suppress(OSError):
            self._mapped_files(pid)

    def _add(self, status: os.stat_result) -> None:
        if status.st_nlink == 0 and status.st_dev == self._device and stat.S_ISREG(status.st_mode):
            self.sizes[status.st_ino] = status.st_blocks * 512

    def _open_files(self, pid: int) -> None:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    self._add(status)
                    if stat.S_ISSOCK(status.st_mode) and _in_flight(pid, entry.name):
                        self._queued(processes.take_descriptor(pid, int(entry.name)), 0)

    def _mapped_files(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", "rb", 0) as file:
            maps = b"".join(iter(lambda: file.read(1 << 16) if file.tell() < _MAPS_MAX else b"", b""))
        for begin, end, offset, major, minor, inode in _DELETED.findall(maps):
            if os.makedev(int(major, 16), int(minor, 16)) != self._device:
                continue
            first, last = int(begin, 16), int(end, 16)
            try:
                self._add(os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}"))
            except PermissionError:
                size = int(offset, 16) + last - first
                self.sizes[int(inode)] = max(size, self.sizes.get(int(inode), 0))
            except OSError:
                continue

    def _queued(self, descriptor: int, depth: int) -> None:
        """Look at the descriptors in a socket's queue without taking them out."""
        with socket.socket(fileno=descriptor) as queue:
            if queue.family != socket.AF_UNIX:
                return
            queue.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
            try:
                for _ in range(_QUEUE_MAX):
                    if time.monotonic() > self.until:
                        break
                    self._message(queue, depth)
            except OSError:  # nothing more in it
                pass
            finally:
                queue.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)

    def _message(self, queue: socket.socket, depth: int) -> None:
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        room = socket.CMSG_SPACE(_DESCRIPTORS_MAX * array.array("i").itemsize)
        data, found, _, _ = queue.recvmsg(1 << 16, room, flags)
        descriptors = array.array("i")
        for level, kind, content in found:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        for one in descriptors:
            status = os.fstat(one)
            self._add(status)
            if stat.S_ISSOCK(status.st_mode) and depth < _DEPTH_MAX:
                self._queued(one, depth + 1)
            else:
                os.close(one)
        if not data and not descriptors:
            raise BlockingIOError


def _in_flight(pid: int, descriptor: str) -> bool:
    """Whether descriptors wait in a socket's queue; only Unix sockets say so."""
    _, found, rest = processes.read_small(f"/proc/{pid}/fdinfo/{descriptor}").partition(b"scm_fds:")
    return bool(found and int(rest.split(b"\n", 1)[0]))
