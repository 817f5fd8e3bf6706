"""Walks and removes directory trees that somebody hostile made: of any depth, with one descriptor, and never
through a link.

`os.fwalk` and `shutil.rmtree` recurse and hold a descriptor for each level, so that a tree some thousand
levels deep ends them, or takes the descriptors of the whole process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gofer_sandbox.kernel import closing


class TreeMoved(Exception):
    """A directory was moved elsewhere while we were in it: what is above it now is not ours to look at."""


def walk(root: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Each directory, top-down: a descriptor good until the next, its directories and its other entries.

    Directories that cannot be entered are left out; `enter` them to open them up. TreeMoved when what is
    above is not what it was.
    """
    fd = open_directory(root)
    above: list[tuple[tuple[int, int], list[str]]] = []
    left: list[str] | None = None  # not yet looked at
    try:
        while left is None or left or above:
            if left is None:
                directories, others = _entries(fd)
                yield fd, directories, others
                left = directories[::-1]
            elif left:
                below = enter(left.pop(), fd)
                if below is not None:
                    above.append((_identity(fd), left))
                    os.close(fd)
                    fd, left = below, None
            else:
                identity, left = above.pop()
                up = open_directory("..", fd)
                os.close(fd)
                fd = up
                if _identity(fd) != identity:
                    raise TreeMoved
    finally:
        os.close(fd)


def open_directory(path: Path | str, above: int | None = None) -> int:
    """Open what must be a directory, and no link to one."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def enter(name: str, directory: int) -> int | None:
    """Open a directory, opened up where its owner made it unreadable; None when it cannot be."""
    for _ in range(2):
        try:
            return open_directory(name, directory)
        except PermissionError:
            _open_up(name, directory)
        except OSError:
            return None
    return None


def remove(root: Path) -> None:
    """Remove a tree as far as possible, whatever its depth and modes."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(root, ignore_errors=True)
    with contextlib.suppress(OSError):
        with closing(open_directory(root)) as top:
            _dissolve(top)
        root.rmdir()


def _dissolve(top: int) -> None:
    """Empty a directory by moving what is deeper up into it, so that nothing is ever deep."""
    count = 0
    while names := os.listdir(top):
        for name in names:
            below = enter(name, top)
            if below is None:
                os.unlink(name, dir_fd=top)
                continue
            with closing(below):
                for inner in os.listdir(below):
                    deeper = enter(inner, below)
                    if deeper is None:
                        os.unlink(inner, dir_fd=below)
                        continue
                    os.close(deeper)
                    _open_up(inner, below)
                    count += 1
                    os.rename(inner, f"{name[:16]}.{count}", src_dir_fd=below, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _entries(fd: int) -> tuple[list[str], list[str]]:
    directories: list[str] = []
    others: list[str] = []
    with os.scandir(fd) as found:
        for entry in found:
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return directories, others


def _open_up(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(name, flags, dir_fd=directory)) as found:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
