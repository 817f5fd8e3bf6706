"""Directory entries, bounded."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from gofer_sandbox.files.root import kind_of

_NAMES_READ = 100_000  # a directory beyond this is listed in part, so that time and memory stay bounded


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory, link, pipe, socket or device. `target` is where a link points."""

    name: str
    kind: str
    size: int
    mode: int
    modified: float
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory's entries by name; `more` counts those left out, at least."""

    path: str
    entries: tuple[Entry, ...]
    more: int


def printable(name: str) -> str:
    """A name that can be shown and stored: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def describe(name: str, info: os.stat_result, target: str | None) -> Entry:
    shown = None if target is None else printable(target)
    mode = stat.S_IMODE(info.st_mode)
    return Entry(printable(name), kind_of(info.st_mode), info.st_size, mode, info.st_mtime, shown)


def list_directory(fd: int, path: str, limit: int) -> Listing:
    """Names first, since sorting needs them all; details only for those that are answered."""
    names = []
    with os.scandir(fd) as found:
        for entry in found:
            names.append(entry.name)
            if len(names) == _NAMES_READ:
                break
    names.sort()
    entries = [e for e in (_entry(fd, name) for name in names[:limit]) if e is not None]
    return Listing(path, tuple(entries), len(names) - min(limit, len(names)))


def _entry(fd: int, name: str) -> Entry | None:
    """The entry, or None where it went away while we looked."""
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
    except OSError:
        return None
    return describe(name, info, target)
