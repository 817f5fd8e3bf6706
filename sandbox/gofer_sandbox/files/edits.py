"""Exact edits: each old text must be in the file once, and all of them apply or none does."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gofer_sandbox.files.errors import EditRefused

_PLACES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `old`, which must stand in the file exactly once, by `new`."""

    old: str
    new: str


def apply(path: str, data: bytes, edits: Sequence[Edit]) -> bytes:
    """The edited content. Every edit is matched against the content as it was, so their order is free."""
    if not edits:
        raise EditRefused(path, "no edits were given")
    spans = sorted(_span(path, data, edit, _label(n, edits)) for n, edit in enumerate(edits, 1))
    for (_, end, _), (start, _, _) in pairwise(spans):
        if start < end:
            raise EditRefused(path, "two edits overlap; join them into one")
    pieces, position = [], 0
    for start, end, new in spans:
        pieces += [data[position:start], new]
        position = end
    return b"".join([*pieces, data[position:]])


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """What changed, as `diff -u` shows it."""
    old = before.decode(errors="replace").splitlines(keepends=True)
    new = after.decode(errors="replace").splitlines(keepends=True)
    name = path.lstrip("/")
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _label(number: int, edits: Sequence[Edit]) -> str:
    return "the old text" if len(edits) == 1 else f"the old text of edit {number}"


def _span(path: str, data: bytes, edit: Edit, label: str) -> tuple[int, int, bytes]:
    old, new = _encoded(path, edit.old), _encoded(path, edit.new)
    if not old:
        raise EditRefused(path, f"{label} is empty; use write to make a new file")
    if old == new:
        raise EditRefused(path, f"{label} and its new text are the same")
    found = data.count(old)
    if found == 0:
        raise EditRefused(path, f"{label} is not in the file{_hint(data, old)}")
    start = data.index(old)
    if data.find(old, start + 1) >= 0:
        places = _line_numbers(data, old)
        raise EditRefused(path, f"{label} is in the file {places}; add lines around it until it is unique")
    return start, start + len(old), new


def _encoded(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EditRefused(path, "an edit holds lone surrogates, which no file can hold") from None


def _line_numbers(data: bytes, old: bytes) -> str:
    """How often and where, overlapping matches included."""
    starts, at = [], data.find(old)
    while at >= 0:
        starts.append(at)
        at = data.find(old, at + 1)
    lines = ", ".join(str(data.count(b"\n", 0, start) + 1) for start in starts[:_PLACES_NAMED])
    more = ", …" if len(starts) > _PLACES_NAMED else ""
    return f"{len(starts)} times (lines {lines}{more})"


def _hint(data: bytes, old: bytes) -> str:
    """Why a text that looks right may not match."""
    if b"\r\n" in data and b"\n" in old and old.replace(b"\r\n", b"\n") in data.replace(b"\r\n", b"\n"):
        return "; the file's lines end in CRLF (\\r\\n)"
    wanted = _bare_lines(old.strip(b"\r\n"))
    if not any(wanted):
        return ""
    have = _bare_lines(data)
    width = len(wanted)
    same = [n for n in range(len(have) - width + 1) if have[n : n + width] == wanted]
    if same:
        return f"; at line {same[0] + 1} it differs only in spaces or tabs: copy them exactly"
    first = next(line for line in wanted if line)
    near = [n for n, line in enumerate(have, 1) if line == first]
    return f"; its first line is at line {near[0]}, but what follows differs" if near and width > 1 else ""


def _bare_lines(data: bytes) -> list[bytes]:
    return [b" ".join(line.split()) for line in data.split(b"\n")]
