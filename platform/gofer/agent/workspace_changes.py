"""Whether the files of a workspace have changed: what tells work from going in circles.

The same failing test after another edit is work. Only names, sizes and times are looked at, from outside and without
following links, and no more of them than take a moment.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

MAX_ENTRIES = 4000
BY_PRODUCTS = frozenset(
    {
        ".cache", ".eggs", ".git", ".gradle", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache",
        ".tox", ".venv", "__pycache__", "node_modules", "venv",
    }
)  # fmt: skip
"""Directories that running a program changes, although nobody has worked on anything."""
_ENDINGS = (".pyc", ".coverage", ".swp")
_GIT = (".git/HEAD", ".git/logs/HEAD")
"""Of git only where the work stands: looking at it changes other files of its own."""


class WorkspaceChanges:
    """One workspace, looked at again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: int | None = None

    def changed(self) -> bool:
        """Whether something changed since the last look. The first look finds nothing; takes some milliseconds."""
        before, self._seen = self._seen, hash(tuple(sorted(_entries(self._directory))))
        return before is not None and before != self._seen

    def forget(self) -> None:
        """Somebody else accounts for what changes now: the next look is the first again."""
        self._seen = None


def _entries(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each file, the upper directories first."""
    waiting = deque([("", directory)])
    count = 0
    while waiting and count < MAX_ENTRIES:
        prefix, folder = waiting.popleft()
        try:
            found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            count += 1
            path = f"{prefix}{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in BY_PRODUCTS:
                        waiting.append((f"{path}/", Path(entry.path)))
                        yield path, 0, 0
                elif not entry.name.endswith(_ENDINGS):
                    status = entry.stat(follow_symlinks=False)
                    yield path, status.st_size, status.st_mtime_ns
            except OSError:
                continue
    for name in _GIT:
        try:
            status = os.lstat(directory / name)
        except OSError:
            continue
        yield name, status.st_size, status.st_mtime_ns
