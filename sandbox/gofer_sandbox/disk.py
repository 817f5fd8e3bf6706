"""Watching how much a workspace holds, where no quota does it for us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox import tree
from gofer_sandbox.limits import MIB, Limits

_SHORTEST = 0.1
_LONGEST = 5.0
_TRIES = 3
_SHARE = 10
"""A look may take one part in this many of the time."""


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


def unlinked(workspace: Path, pids: Iterable[int]) -> int:
    """Bytes of files that have no name any more and that those processes hold open on the workspace's device:
    they take their space until the last of them is closed."""
    try:
        device = workspace.stat().st_dev
    except OSError:
        return 0
    sizes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    if status.st_nlink == 0 and status.st_dev == device and stat.S_ISREG(status.st_mode):
                        sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


class DiskWatch:
    """Looks at a workspace while a command runs, and says when it holds too much.

    A workspace that is over its limit already may still be worked in, to delete something; it may only not
    grow any more.
    """

    def __init__(self, workspace: Path, limits: Limits, pids: Callable[[], Iterable[int]]) -> None:
        """`pids` says which processes the session has now; it is called in a thread."""
        self._workspace, self._limits, self._pids = workspace, limits, pids
        self._task: asyncio.Task[None] | None = None
        self.usage = Usage()

    def begin(self, full: Callable[[str], None]) -> None:
        """Look from now on, if not doing so already."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(full))

    def end(self) -> None:
        """Look no more."""
        if self._task:
            self._task.cancel()
            self._task = None

    def _measure(self) -> Usage:
        found = measure(self._workspace)
        return Usage(found.size + unlinked(self._workspace, self._pids()), found.files)

    async def _watch(self, full: Callable[[str], None]) -> None:
        allowed = Usage(
            max(self._limits.disk, self.usage.size + MIB), max(self._limits.files, self.usage.files + 100)
        )
        while True:
            began = time.monotonic()
            self.usage = await asyncio.to_thread(self._measure)
            if self.usage.size > allowed.size:
                full(f"the workspace holds {self.usage.size} bytes, more than its {self._limits.disk}")
                return
            if self.usage.files > allowed.files:
                full(f"the workspace holds {self.usage.files} files, more than its {self._limits.files}")
                return
            await asyncio.sleep(min(_LONGEST, max(_SHORTEST, _SHARE * (time.monotonic() - began))))
