"""Reading text by lines: pages, numbers, and memory that stays flat whatever the file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gofer_sandbox.files.errors import FileTooLarge

BLOCK = 1 << 18
SNIFF = 8192


@dataclass(frozen=True, slots=True)
class TextPage:
    """Some lines of a text file.

    `next_line` is where the following page begins, or None at the end of the file. `total_lines` is None when
    the file was too long to count. `shortened` is how many of the lines were cut, and `lossy` says that some
    bytes were not UTF-8 and are shown as U+FFFD.
    """

    path: str
    lines: tuple[str, ...]
    first_line: int
    next_line: int | None
    total_lines: int | None
    size: int
    shortened: int
    lossy: bool

    def numbered(self) -> str:
        """The lines as people quote them: number, tab, text."""
        width = len(str(self.first_line + len(self.lines)))
        return "\n".join(f"{n:>{width}}\t{line}" for n, line in enumerate(self.lines, self.first_line))


@dataclass(frozen=True, slots=True)
class PageLimits:
    """How much of a file one page may hold, and how far into it one call looks."""

    line_bytes: int = 4096
    page_bytes: int = 256 * 1024
    scan_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Line:
    kept: bytes
    cut: bool

    def decode(self) -> tuple[str, bool]:
        """The text, and whether something in it was not UTF-8; a character that we cut in half is dropped."""
        try:
            return codecs.utf_8_decode(self.kept, "strict", not self.cut)[0], False
        except UnicodeDecodeError:
            return codecs.utf_8_decode(self.kept, "replace", not self.cut)[0], True


class _Lines:
    """The lines of an open file; `ended` tells whether its end was reached within the scan limit."""

    def __init__(self, fd: int, limits: PageLimits) -> None:
        self._fd = fd
        self._limits = limits
        self.ended = False

    def _blocks(self) -> Iterator[bytes]:
        left = self._limits.scan_bytes
        while left > 0:
            block = os.read(self._fd, min(BLOCK, left))
            if not block:
                self.ended = True
                return
            left -= len(block)
            yield block

    def __iter__(self) -> Iterator[_Line]:
        limit, kept, length = self._limits.line_bytes, b"", 0
        for block in self._blocks():
            *whole, rest = block.split(b"\n")
            for piece in whole:
                kept += piece[: max(0, limit - len(kept))]
                yield _Line(kept.removesuffix(b"\r"), length + len(piece) > limit)
                kept, length = b"", 0
            kept += rest[: max(0, limit - len(kept))]
            length += len(rest)
        if length:
            yield _Line(kept, length > limit or not self.ended)


def is_binary(head: bytes) -> bool:
    """Whether the file's beginning holds a NUL byte, which no text does."""
    return b"\0" in head[:SNIFF]


def read_page(fd: int, path: str, first: int, count: int, limits: PageLimits) -> TextPage:
    """Collect the asked lines, then count the rest as far as the scan limit allows."""
    source, seen, room = _Lines(fd, limits), 0, limits.page_bytes
    lines: list[_Line] = []
    for line in source:
        seen += 1
        if seen < first or len(lines) < seen - first or len(lines) == count:
            continue  # before the page, or after it has ended
        if lines and len(line.kept) > room:
            continue
        lines.append(line)
        room -= len(line.kept)
    if not lines and not source.ended:
        raise FileTooLarge(path, f"line {first} is too far into the file; use a command such as sed -n")
    decoded = [line.decode() for line in lines]
    following = first + len(lines)
    return TextPage(
        path=path,
        lines=tuple(text for text, _ in decoded),
        first_line=first,
        next_line=None if source.ended and following > seen else following,
        total_lines=seen if source.ended else None,
        size=os.fstat(fd).st_size,
        shortened=sum(line.cut for line in lines),
        lossy=any(lossy for _, lossy in decoded),
    )
