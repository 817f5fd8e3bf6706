"""A command's output: beginning and end in memory, the whole in a bounded file, the rest only counted."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable
from pathlib import Path

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.kernel import closing
from gofer_sandbox.result import Page

_PAGE_MAXIMUM = 1024 * 1024


class Capture:
    """Keeps at most `cap` bytes of any amount of output for the result, and `spool` bytes in a file.

    The kernel moves every piece to the file, so that a server that takes over finds what the dead one had taken; it is
    read when the command has ended. What has no place there is kept in memory, as far as the result shows it.
    """

    def __init__(self, path: str, cap: int, spool: int) -> None:
        self.path, self.total, self.text = path, 0, ""
        self._half, self._room = max(1, cap // 2), spool
        self._file, self._spooled = -1, 0
        self._written = False
        self._head, self._tail = bytearray(), bytearray()
        """Of what is not in the file."""
        self._end = 0
        """Of what is used of the tail: the last of the output is before it."""

    def take(self, source: int, size: int, show: Callable[[bytes], None] | None = None) -> int:
        """Take the next piece of what a pipe holds and say how much it was: nothing at its end, BlockingIOError when it
        is only empty. `show` is given that piece."""
        taken = self._spool(source, min(size, self._room), show) if self._room > 0 else None
        if taken is None:
            taken = self._read(source, size, show)
        self.total += taken
        return taken

    def _spool(self, source: int, size: int, show: Callable[[bytes], None] | None) -> int | None:
        """Take a piece through the file; None when the disk has no room for it, which must not take the session
        down: the result still has head and tail."""
        if self._file < 0 and not holds(source):
            return 0
        try:
            if self._file < 0:
                self._file, self._written = _open(self.path), True
            taken = through(source, self._file, self._spooled, size)
        except BlockingIOError:
            raise
        except OSError:
            self._room = 0
            return None
        if show and taken:
            show(os.pread(self._file, taken, self._spooled))
        self._spooled += taken
        self._room -= taken
        return taken

    def _read(self, source: int, size: int, show: Callable[[bytes], None] | None) -> int:
        """Into memory: as much as is missing of the head, then to the end of the tail, where what is too far from the
        end goes."""
        missing = self._half - self._spooled - len(self._head)
        if missing > 0:
            data = os.read(source, min(size, missing))
            self._head += data
            taken = len(data)
        else:
            self._make_room(size)
            view = memoryview(self._tail)[self._end : self._end + size]
            taken = os.readv(source, [view])
            data = bytes(view[:taken]) if show else b""
            self._end += taken
        if show and data:
            show(data)
        return taken

    def _make_room(self, size: int) -> None:
        if self._end + size > len(self._tail):
            last = self._tail[max(0, self._end - self._half) : self._end]
            if len(self._tail) < self._half + 2 * size:
                self._tail = bytearray(self._half + 2 * max(size, self._half))
            self._tail[: len(last)] = last
            self._end = len(last)

    def recover(self) -> bool:
        """Go on behind what an earlier server had already put in the file; False when it may have read more than it
        could write there."""
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._written = True
            self.total = self._spooled = os.fstat(self._file).st_size
            self._room -= self._spooled
        return self._room > 0

    @property
    def kept(self) -> int:
        """How many bytes `text` stands for."""
        return min(self.total, 2 * self._half)

    @property
    def dropped(self) -> int:
        """How many bytes `text` leaves out."""
        return self.total - self.kept

    def release(self) -> None:
        """Stop writing, and leave the file to whoever comes after."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._room = 0

    def close(self) -> Path | None:
        """Stop writing, and put beginning and end in `text`, with a line between them that says what is missing; where
        the whole is, when something is."""
        if self.total:
            first = min(self._half, self._spooled)
            tail = bytes(self._tail[max(0, self._end - self._half) : self._end])
            begin = max(first, self._spooled - self._half + len(tail))
            head, tail = self._stored(0, first) + self._head, self._stored(begin, self._spooled) + tail
            if self.dropped:
                texts = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
                self.text = f"\n[… {self.dropped} bytes left out …]\n".join(texts)
            else:
                self.text = (head + tail).decode("utf-8", "replace")
        self.release()
        return Path(self.path) if self.dropped else None

    def _stored(self, begin: int, end: int) -> bytes:
        return os.pread(self._file, end - begin, begin) if begin < end and self._file >= 0 else b""

    def discard(self) -> None:
        """Remove the file if the text says everything. Until the journal says that the command has ended, a server that
        takes over needs it."""
        if self._written and not self.dropped:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


class BackgroundLog:
    """What runs on after its command prints here: up to a bound each, and, with all that is kept, up to another."""

    def __init__(self, directory: Path, bound: int, in_all: int) -> None:
        self._directory, self._bound, self._in_all = directory, bound, in_all
        self._since = 0
        """How much was added since the bound of all was last seen to."""

    def path(self, number: int) -> Path:
        """Where the later output of a command is."""
        return self._directory / f"{number}.background"

    def take(self, number: int, source: int, size: int) -> bool:
        """Append what still fits of a piece that a pipe holds; False at its end, BlockingIOError when it is only
        empty."""
        if not holds(source):
            return False
        if not self._append(number, source, size):
            os.read(source, size)
        return True

    def _append(self, number: int, source: int, size: int) -> bool:
        """Whether there was room."""
        try:
            with closing(_open(self.path(number))) as file:
                end = os.lseek(file, 0, os.SEEK_END)
                added = through(source, file, end, min(size, self._bound - end)) if end < self._bound else 0
        except BlockingIOError:
            raise
        except OSError:
            return False
        self._since += added
        if self._since > self._in_all // 8:
            self._since = 0
            with contextlib.suppress(OSError):
                prune(self._directory, self._in_all)
        return added > 0


def holds(pipe: int) -> bool:
    """Whether there is something in a pipe; False at its end, BlockingIOError when it is only empty."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    events = poll.poll(0)
    if not events:
        raise BlockingIOError
    return bool(events[0][1] & select.POLLIN)


def through(source: int, file: int, offset: int, size: int) -> int:
    """Have the kernel move a piece of what a pipe holds to a file, and say how much: whoever is killed meanwhile leaves
    every byte in one or the other."""
    try:
        return os.splice(source, file, size, offset_dst=offset, flags=os.SPLICE_F_NONBLOCK)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    data = os.read(source, size)  # into a file system that cannot do so
    write_at(file, data, offset)
    return len(data)


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write every byte."""
    written = os.pwrite(file, data, offset)
    if written < len(data):
        write_at(file, data[written:], offset + written)


def _open(path: Path | str) -> int:
    """Not to append, which the kernel does not do with what it moves."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


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
