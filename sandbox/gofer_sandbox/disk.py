"""Watching how much a workspace holds and how much the machine has left, also where the file system holds a limit:
root's own writes are not bound by a quota, and the limits of all sessions together may be more than there is."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import random
import re
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox import processes, tree
from gofer_sandbox.files.errors import NoSpace
from gofer_sandbox.kernel import take_descriptor
from gofer_sandbox.limits import MIB, RESERVE, Limits

_FIRST = 0.01
"""Seconds from a command's start to the first look: a shorter one is looked at when it has ended."""
_SHORTEST = 0.1
_LONGEST = 5.0
_TRIES = 3
_SHARE = 10
"""A look may take one part in this many of the time."""
_SLACK_BYTES, _SLACK_FILES = 1 * MIB, 100
"""How much a workspace may grow that must not."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a workspace holds."""

    size: int = 0
    files: int = 0


def measure(workspace: Path) -> Usage:
    """Count blocks and entries without following links; a directory its owner made unreadable is opened up
    again, so that nothing hides from the count. Who moves directories about meanwhile is counted again."""
    most = Usage()
    for _ in range(_TRIES):
        found, whole = _count(workspace)
        most = Usage(max(most.size, found.size), max(most.files, found.files))
        if whole:
            break
    return most


def _count(workspace: Path) -> tuple[Usage, bool]:
    size = files = 0
    linked: set[int] = set()
    try:
        for fd, directories, others in tree.walk(workspace):
            for name in (*directories, *others):
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    files += 1
                    if status.st_nlink < 2 or status.st_ino not in linked:
                        size += status.st_blocks * 512
                    if status.st_nlink > 1:
                        linked.add(status.st_ino)
    except (OSError, tree.TreeMoved):
        return Usage(size, files), False
    return Usage(size, files), True


def free_space(place: Path) -> int:
    """Bytes that anybody but root may still use where a directory is. Of a workspace that is under a quota, or in an
    image, the kernel says what is left of that: ask for the directory above it."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


class DiskWatch:
    """Looks at a workspace while a command runs, once more when it has ended, and for as long as something runs in
    the background; and says when it holds too much, or grows while the machine is short of space.

    A workspace that is over its limit already may still be worked in, to delete something; it may only not
    grow any more.
    """

    def __init__(
        self, workspace: Path, limits: Limits, pids: Callable[[], Iterable[int]], reserve: int = RESERVE
    ) -> None:
        """`pids` says which processes the session has now; it is called in a thread. `reserve` is the free space of
        the machine below which the workspace may not grow."""
        self.workspace, self._limits, self._pids, self._reserve = workspace, limits, pids, reserve
        self._full: Callable[[str], None] = lambda _: None
        self._lasting = False
        self._events = 0
        self._began = 0.0
        self._quiet: asyncio.Future[None] | None = None
        """Done when nothing runs any more, while a look waits for that."""
        self._task: asyncio.Task[None] | None = None
        self._allowed: Usage | None = None
        """Known after the first look at a workspace that held too much before."""
        self._short_since: Usage | None = None
        self._pending = self._written = 0
        """Bytes that the server itself is writing, and has written: a look may come too early to see them."""
        self.usage = Usage()

    def begin(self, full: Callable[[str], None], *, lasting: bool = True) -> None:
        """Look soon, and go on looking if something lasts. `full` is called with the reason when it is too much."""
        self._full, self._lasting = full, lasting
        self._events += 1
        if lasting:
            self._began = time.monotonic()
        elif self._quiet and not self._quiet.done():
            self._quiet.set_result(None)
        over = self.usage.size > self._limits.disk or self.usage.files > self._limits.files
        self._allowed = None if over else Usage(self._limits.disk, self._limits.files)
        self._short_since = None
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Look no more."""
        if self._task:
            self._task.cancel()
            self._task = None

    @contextlib.asynccontextmanager
    async def room(self, path: str, size: int) -> AsyncIterator[None]:
        """For as long as the server itself writes that much into the workspace; NoSpace where it may not."""
        if self._exceeds(size):  # something may have been removed since the last look
            await asyncio.to_thread(self._look)
        if self._exceeds(size):
            raise NoSpace(path, f"the workspace may hold {self._limits.disk} bytes; remove something first")
        if size > _SLACK_BYTES and free_space(self.workspace.parent) - size < self._reserve:
            raise NoSpace(path, "the machine is short of disk space")
        self._pending += size
        try:
            yield
        finally:
            self._pending -= size
            self._written += size
            self.usage = Usage(self.usage.size + size, self.usage.files + 1)

    def _exceeds(self, size: int) -> bool:
        return self.usage.size + self._pending + size > self._limits.disk

    async def _watch(self) -> None:
        """Until all is quiet and was looked at since it is, or too much was found."""
        await asyncio.sleep(_FIRST)
        while True:
            if self._lasting and time.monotonic() - self._began < _FIRST:
                # Outlast a short command: a look takes the interpreter from whoever waits for its end.
                self._quiet = asyncio.get_running_loop().create_future()
                await asyncio.wait({self._quiet}, timeout=_FIRST)
            began, events = time.monotonic(), self._events
            why = await asyncio.to_thread(self._look)
            if why:
                self._task = None
                self._full(why)
                return
            await asyncio.sleep(min(_LONGEST, max(_SHORTEST, _SHARE * (time.monotonic() - began))))
            if events == self._events and not self._lasting:
                self._task = None
                return

    def _look(self) -> str:
        """What is wrong, if anything."""
        try:
            free, device = free_space(self.workspace.parent), self.workspace.stat().st_dev
        except OSError:
            return ""
        short = free < self._reserve
        written, found = self._written, measure(self.workspace)
        meanwhile = self._written - written
        self.usage = Usage(found.size + unlinked(device, self._pids()) + meanwhile, found.files)
        if short and self._short_since is None:
            self._short_since = self.usage
        elif not short:
            self._short_since = None
        return self._judged(free)

    def _judged(self, free: int) -> str:
        usage, before = self.usage, self._short_since
        size = max(self._limits.disk, usage.size + _SLACK_BYTES)
        files = max(self._limits.files, usage.files + _SLACK_FILES)
        allowed = self._allowed or Usage(size, files)
        self._allowed = Usage(min(size, allowed.size), min(files, allowed.files))
        if before and usage.size > before.size + _SLACK_BYTES:
            self._short_since = usage
            return f"the machine has {free} bytes of disk left, less than the {self._reserve} it keeps free"
        if usage.size > allowed.size:
            return f"the workspace holds {usage.size} bytes, more than its {self._limits.disk}"
        if usage.files > allowed.files:
            return f"the workspace holds {usage.files} files, more than its {self._limits.files}"
        return ""


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
                        self._queued(take_descriptor(pid, int(entry.name)), 0)

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
