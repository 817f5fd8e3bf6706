"""A command's output: beginning and end in memory, the whole in a bounded file, the rest only counted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.result import Page

_PAGE_MAXIMUM = 1024 * 1024


class Capture:
    """Keeps at most `cap` bytes in memory and `spool` bytes on disk of any amount of output.

    Every piece is written to the file when it is read, so that a server that takes over finds what the dead
    one had read.
    """

    def __init__(self, path: str, cap: int, spool: int) -> None:
        self.path, self.total = path, 0
        self._written = False
        self._half, self._room = max(1, cap // 2), spool
        self._head, self._tail = bytearray(), bytearray()
        self._file = -1

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        if self._room > 0:
            self._write(data)
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        missing = self._half - len(self._head)
        if missing > 0:
            self._head += data[:missing]
            data = data[missing:]
        if data:
            self._tail += data[-self._half :]
            if len(self._tail) > 4 * self._half:
                del self._tail[: -self._half]

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
            self._written = True
        piece = data[: self._room]
        try:
            self._room -= os.write(self._file, piece)
        except OSError:  # a full disk must not take the session down; the result still has head and tail
            self._room = 0

    def recover(self) -> bool:
        """Take in what an earlier server had already read and written to the file; False when it may have read more
        than it could write there."""
        try:
            with open(self.path, "rb") as file:
                self._written = True
                while piece := file.read(_PAGE_MAXIMUM):
                    self._keep(piece)
                    self._room -= len(piece)
        except FileNotFoundError:
            pass
        return self._room > 0

    @property
    def kept(self) -> int:
        """How many bytes `text` stands for."""
        return len(self._head) + min(len(self._tail), self._half)

    @property
    def dropped(self) -> int:
        """How many bytes `text` leaves out."""
        return self.total - self.kept

    def text(self) -> str:
        """Beginning and end, with a line between them that says what is missing."""
        if not self.total:
            return ""
        tail = bytes(self._tail[-self._half :])
        if not self.dropped:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head = bytes(self._head).decode("utf-8", "replace")
        return f"{head}\n[… {self.dropped} bytes left out …]\n{tail.decode('utf-8', 'replace')}"

    def release(self) -> None:
        """Stop writing, and leave the file to whoever comes after."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._room = 0

    def close(self) -> Path | None:
        """Stop writing; the file is kept only when the text does not say everything."""
        if not self.total:
            return None
        self.release()
        if self.dropped:
            return Path(self.path)
        if self._written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        return None


class BackgroundLog:
    """What runs on after its command prints here: up to a bound each, and, with all that is kept, up to another."""

    def __init__(self, directory: Path, bound: int, in_all: int) -> None:
        self._directory, self._bound, self._in_all = directory, bound, in_all
        self._since = 0
        """How much was added since the bound of all was last seen to."""

    def path(self, number: int) -> Path:
        """Where the later output of a command is."""
        return self._directory / f"{number}.background"

    def add(self, number: int, data: bytes) -> None:
        """Append what still fits."""
        path = self.path(number)
        try:
            with path.open("ab") as file:
                room = self._bound - file.tell()
                if room > 0:
                    self._since += file.write(data[:room])
            if self._since > self._in_all // 8:
                self._since = 0
                prune(self._directory, self._in_all)
        except OSError:
            pass


def page(path: Path, offset: int, limit: int) -> Page:
    """A part of a kept output; a negative offset counts from the end."""
    if not 0 < limit <= _PAGE_MAXIMUM:
        raise InvalidInput(f"limit must be between 1 and {_PAGE_MAXIMUM} bytes, not {limit}")
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(limit)
    except FileNotFoundError:
        raise InvalidInput("that command's output was complete in its result, or is no longer kept") from None
    end = start + len(data)
    return Page(data, start, end if end < size else None, size)


def prune(directory: Path, bound: int) -> None:
    """Remove the oldest kept outputs until the rest fit the bound."""
    entries = [(entry.stat().st_mtime_ns, entry) for entry in directory.iterdir() if entry.is_file()]
    total = sum(entry.stat().st_size for _, entry in entries)
    for _, entry in sorted(entries):
        if total <= bound:
            return
        total -= entry.stat().st_size
        entry.unlink(missing_ok=True)
