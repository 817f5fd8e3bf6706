"""Reading text by lines: pages, numbers, and memory that stays flat whatever the file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gofer_sandbox.files.errors import FileTooLarge

BLOCK = 1 << 18
SNIFF = 8192
MAX_LINE, MAX_PAGE = 4096, 256 * 1024
"""Bytes of one line, and of one page."""
MAX_SCANNED = 64 * 1024 * 1024
"""How far into a file one call looks."""


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


def _lines(fd: int) -> Iterator[tuple[bytes, bool]]:
    """The lines of an open file, as far as one call looks, and whether each was cut."""
    kept, length, left = b"", 0, MAX_SCANNED
    while block := os.read(fd, min(BLOCK, left)):
        left -= len(block)
        *whole, rest = block.split(b"\n")
        for piece in whole:
            kept += piece[: max(0, MAX_LINE - len(kept))]
            yield kept.removesuffix(b"\r"), length + len(piece) > MAX_LINE
            kept, length = b"", 0
        kept += rest[: max(0, MAX_LINE - len(kept))]
        length += len(rest)
    if length:
        yield kept, length > MAX_LINE or not left


def _decoded(line: bytes, cut: bool) -> tuple[str, bool]:
    """The text, and whether something in it was not UTF-8; a character that we cut in half is dropped."""
    try:
        return codecs.utf_8_decode(line, "strict", not cut)[0], False
    except UnicodeDecodeError:
        return codecs.utf_8_decode(line, "replace", not cut)[0], True


def is_binary(head: bytes) -> bool:
    """Whether the file's beginning holds a NUL byte, which no text does."""
    return b"\0" in head[:SNIFF]


def read_page(fd: int, path: str, first: int, count: int) -> TextPage:
    """Collect the asked lines, then count the rest as far as the scan limit allows."""
    seen, room, lines = 0, MAX_PAGE, list[tuple[bytes, bool]]()
    for line, cut in _lines(fd):
        seen += 1
        if seen < first or len(lines) < seen - first or len(lines) == count:
            continue  # before the page, or after it has ended
        if lines and len(line) > room:
            continue
        lines.append((line, cut))
        room -= len(line)
    ended = os.lseek(fd, 0, os.SEEK_CUR) < MAX_SCANNED
    if not lines and not ended:
        raise FileTooLarge(path, f"line {first} is too far into the file; use a command such as sed -n")
    decoded = [_decoded(*line) for line in lines]
    following = first + len(lines)
    return TextPage(
        path=path,
        lines=tuple(text for text, _ in decoded),
        first_line=first,
        next_line=None if ended and following > seen else following,
        total_lines=seen if ended else None,
        size=os.fstat(fd).st_size,
        shortened=sum(cut for _, cut in lines),
        lossy=any(lossy for _, lossy in decoded),
    )
