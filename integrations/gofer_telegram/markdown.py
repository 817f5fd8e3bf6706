"""Parse Markdown: CommonMark with tables, strikethrough and tasks, without HTML.

HTML tags and empty task boxes are text here, so they are escaped for the parser. Offsets count characters of the
original text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

MAX_ROUNDS = 8
"""Rounds of parsing and escaping tags. A tag that is left then is shown as it is."""
MAX_EVENTS = 30_000
"""Parser events in an answer; a table can have many in few characters, and one with more becomes a file."""
_LINE_START = re.compile(r"^[ \t>]*<", re.MULTILINE)
_EMPTY_TASK = re.compile(r"\[.\][ \t]*$", re.MULTILINE)
_REMOVED = dict.fromkeys(
    (code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"), None
)


class Event(NamedTuple):
    """A parser event and its position."""

    value: Any
    start: int
    end: int


def clean(text: str) -> str:
    """Text that can be sent: no lone surrogates, no control characters but tabs and line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.translate(_REMOVED).encode("utf-8", "replace").decode()


def parse(markdown: str) -> list[Event]:
    """The events of a text in order, and not many more than `MAX_EVENTS`."""
    inserted: list[int] = []
    """Positions of the original text with a backslash inserted before them."""
    for _ in range(MAX_ROUNDS):
        events, tags = _parse(markdown, inserted)
        if not tags - set(inserted):
            break
        inserted = sorted(tags.union(inserted))
    return events


def _parse(markdown: str, inserted: list[int]) -> tuple[list[Event], set[int]]:
    import pyromark

    options = pyromark.Options
    wanted = options.ENABLE_TABLES | options.ENABLE_STRIKETHROUGH | options.ENABLE_TASKLISTS
    bounds = [0, *inserted, len(markdown)]
    escaped = "\\".join(markdown[a:b] for a, b in pairwise(bounds))
    place = _places(escaped, inserted)
    events: list[Event] = []
    tags: set[int] = set()
    for value, at in islice(pyromark.events_with_range(escaped, options=wanted), MAX_EVENTS + 1):
        start, end = place(at["start"]), place(at["end"])
        events.append(Event(value, start, end))
        if isinstance(value, dict) and "InlineHtml" in value:
            tags.add(start)
        elif value == {"Start": "HtmlBlock"}:
            tags.update(found.end() - 1 for found in _LINE_START.finditer(markdown, start, end))
            tags.update([markdown.find("<", start, end)] if "<" in markdown[start:end] else [])
        elif isinstance(value, dict) and "TaskListMarker" in value and _EMPTY_TASK.match(markdown, start):
            # No task, since it has no words; the parser would take the next line for the beginning of a paragraph.
            tags.add(start)
    return events, tags


def _places(escaped: str, inserted: list[int]) -> Callable[[int], int]:
    """A function from the parser's offsets (UTF-8 bytes of the escaped text) to characters of the original text."""
    moved = [place + number for number, place in enumerate(inserted)]
    if escaped.isascii():
        return (lambda offset: offset - bisect_left(moved, offset)) if moved else int
    before = [0, *accumulate(byte & 0xC0 != 0x80 for byte in escaped.encode())]
    return lambda offset: before[offset] - bisect_left(moved, before[offset])


def name_of(event: Any) -> tuple[str, Any]:
    """The name and value of what starts with an event; empty for other events. Inline code is one event."""
    if not isinstance(event, dict) or "End" in event:
        return "", None
    began = event.get("Start", event)
    return next(iter(began.items())) if isinstance(began, dict) else (began, None)


def definitions(markdown: str) -> list[tuple[str, str]]:
    """The link definitions of a text: label and target."""
    import pyromark

    return [(label, found["dest"]) for label, found in pyromark.reference_definitions(markdown).items()]
