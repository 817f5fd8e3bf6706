"""Exact edits: each old text must be in the file once, and all of them apply or none does."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gofer_sandbox.files.errors import EditRefused

_MAX_NAMED = 5
_MAX_COUNTED = 100
_CONTEXT = 3
_MAX_COMPARED = 2000
_HUNK = re.compile(r"^@@ -(\d+)(,\d+|) \+(\d+)(,\d+|) @@")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `old`, which must stand in the file exactly once, by `new`."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, order=True)
class EditSpan:
    """A place in the content and what comes there instead."""

    start: int
    end: int
    new: bytes


def find(path: str, data: bytes, edits: Sequence[Edit]) -> list[EditSpan]:
    """Where the edits apply, in the file's order; each is matched against the content as it was."""
    if not edits:
        raise EditRefused(path, "no edits were given")
    spans = sorted(_span(path, data, edit, _label(n, edits)) for n, edit in enumerate(edits, 1))
    for one, following in pairwise(spans):
        if following.start < one.end:
            raise EditRefused(path, "two edits overlap; join them into one")
    return spans


def apply(data: bytes, spans: Sequence[EditSpan]) -> bytes:
    """The edited content."""
    return _between(data, spans, 0, len(data))


def unified_diff(path: str, data: bytes, spans: Sequence[EditSpan]) -> str:
    """What changed, as `diff -u` shows it.

    Only the lines around each span are compared: comparing whole files takes the square of their length, which
    for a file somebody prepared is hours.
    """
    name = path.lstrip("/")
    shown = [f"--- a/{name}\n", f"+++ b/{name}\n"]
    line = shift = at = 0
    for start, end, inside in _regions(data, spans):
        line += data.count(b"\n", at, start)
        at = start
        old, new = _lines(data[start:end]), _lines(_between(data, inside, start, end))
        shown += _hunks(old, new, line, line + shift)
        shift += len(new) - len(old)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in shown
    )


def _between(data: bytes, spans: Sequence[EditSpan], start: int, end: int) -> bytes:
    """A part of the content with the spans in it applied."""
    pieces, position = [], start
    for span in spans:
        pieces += [data[position : span.start], span.new]
        position = span.end
    return b"".join([*pieces, data[position:end]])


def _regions(data: bytes, spans: Sequence[EditSpan]) -> Iterator[tuple[int, int, list[EditSpan]]]:
    """Whole lines with the spans in them and those around, joined where they meet."""
    start, end, inside = -1, -1, list[EditSpan]()
    for span in spans:
        first, last = _lines_before(data, span.start), _lines_after(data, span.end)
        if inside and first <= end:
            end = last
            inside.append(span)
            continue
        if inside:
            yield start, end, inside
        start, end, inside = first, last, [span]
    yield start, end, inside


def _lines_before(data: bytes, at: int) -> int:
    """The beginning of the line, and of as many before it as are shown."""
    for _ in range(_CONTEXT + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _lines_after(data: bytes, at: int) -> int:
    for _ in range(_CONTEXT + 1):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at


def _lines(data: bytes) -> list[str]:
    parts = data.decode(errors="replace").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + parts[-1:] * bool(parts[-1])


def _hunks(old: list[str], new: list[str], old_line: int, new_line: int) -> list[str]:
    """The differences between two runs of lines that begin after those many lines."""
    if len(old) + len(new) > _MAX_COMPARED:
        sizes = f"-{old_line + 1},{len(old)} +{new_line + 1},{len(new)}"
        return [f"@@ {sizes} @@\n", *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    found = list(difflib.unified_diff(old, new, n=_CONTEXT))[2:]
    return [
        _HUNK.sub(lambda m: f"@@ -{int(m[1]) + old_line}{m[2]} +{int(m[3]) + new_line}{m[4]} @@", line)
        if line.startswith("@@")
        else line
        for line in found
    ]


def _label(number: int, edits: Sequence[Edit]) -> str:
    return "the old text" if len(edits) == 1 else f"the old text of edit {number}"


def _span(path: str, data: bytes, edit: Edit, label: str) -> EditSpan:
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
    return EditSpan(start, start + len(old), new)


def _encoded(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EditRefused(path, "an edit holds lone surrogates, which no file can hold") from None


def _line_numbers(data: bytes, old: bytes) -> str:
    """How often and where, overlapping matches included; not without end, for each takes as long as the text."""
    starts, at = list[int](), data.find(old)
    while at >= 0 and len(starts) < _MAX_COUNTED:
        starts.append(at)
        at = data.find(old, at + 1)
    lines = ", ".join(str(data.count(b"\n", 0, start) + 1) for start in starts[:_MAX_NAMED])
    more = ", …" if len(starts) > _MAX_NAMED else ""
    return f"{'more than ' if at >= 0 else ''}{len(starts)} times (lines {lines}{more})"


def _hint(data: bytes, old: bytes) -> str:
    """Why a text that looks right may not match."""
    if b"\r\n" in data and b"\n" in old and old.replace(b"\r\n", b"\n") in data.replace(b"\r\n", b"\n"):
        return "; the file's lines end in CRLF (\\r\\n)"
    wanted = _bare_lines(old.strip(b"\r\n"))
    if not any(wanted):
        return ""
    have = _bare_lines(data)
    whole = _joined(have)
    same = whole.find(_joined(wanted))
    if same >= 0:
        line = whole.count(b"\n", 0, same) + 1
        return f"; at line {line} it differs only in spaces or tabs: copy them exactly"
    first = next(line for line in wanted if line)
    near = [n for n, line in enumerate(have, 1) if line == first]
    return (
        f"; its first line is at line {near[0]}, but what follows differs" if near and len(wanted) > 1 else ""
    )


def _bare_lines(data: bytes) -> list[bytes]:
    return [b" ".join(line.split()) for line in data.split(b"\n")]


def _joined(lines: list[bytes]) -> bytes:
    """One text in which only whole lines are found; comparing lists at every line takes far longer."""
    return b"\n" + b"\n".join(lines) + b"\n"
