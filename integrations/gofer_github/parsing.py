"""What a parser finds in Markdown, in time that grows with the text and no faster, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyromark

INLINE = frozenset({"Emphasis", "Strong", "Strikethrough", "Link", "Image"})
"""What begins and ends within a block."""


class Found(NamedTuple):
    """One event: something begins or ends, or is there as a whole."""

    what: str
    """Start, End or empty."""
    kind: str
    words: str
    start: int
    end: int
    """Bytes of the text as UTF-8."""


class TooIntricate(Exception):
    """A table of which next to nothing is written and all is made up."""


def found_in(text: str, *, tables: bool = False) -> Iterator[Found]:
    """Everything, in order. Raises TooIntricate beyond two events a character, which only such a table has."""
    options = pyromark.Options.ENABLE_TABLES if tables else pyromark.Options(0)
    left = 2 * len(text) + 1000
    for event, at in pyromark.events_with_range(text, options=options):
        left -= 1
        if left < 0:
            raise TooIntricate
        yield _found(event, at["start"], at["end"])


def _found(event: Any, start: int, end: int) -> Found:
    if isinstance(event, str):
        return Found("", event, "", start, end)
    ((what, value),) = event.items()
    if what not in ("Start", "End"):
        return Found("", what, str(value), start, end)
    return Found(what, value if isinstance(value, str) else next(iter(value)), "", start, end)
