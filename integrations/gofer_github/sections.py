"""A Markdown text, cut into what is code, what is HTML and what is words, by the lines they stand on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, groupby
from typing import Literal

from gofer_github.parsing import INLINE, found_in

Kind = Literal["words", "table", "code", "html", "aside"]
_KINDS: dict[str, Kind] = {
    "CodeBlock": "code",
    "HtmlBlock": "html",
    "Paragraph": "words",
    "Heading": "words",
    "Rule": "words",
    "Table": "table",
}


def sections(text: str) -> Iterator[tuple[Kind, str]]:
    """Every line once and in order. Aside is what belongs to no block: blank lines, and where links lead.

    Raises TooIntricate."""
    lines = text.split("\n")
    marks: list[tuple[Kind, int]] = [("aside", -1)] * len(lines)
    starts = [0, *accumulate(len(line.encode()) + 1 for line in lines)]
    done = 0
    for number, (kind, start, end) in enumerate(_blocks(text)):
        first = max(done, bisect_right(starts, start) - 1)
        done = max(first, bisect_right(starts, max(start, end - 1)))
        marks[first:done] = [(kind, number)] * (done - first)
    at = 0
    for (kind, _), group in groupby(marks):
        size = sum(1 for _ in group)
        yield kind, "\n".join(lines[at : at + size])
        at += size


def _blocks(text: str) -> Iterator[tuple[Kind, int, int]]:
    """The blocks that hold no other, in order; words that stand in an item without a paragraph are one, too."""
    start = end = 0
    inside = False
    for found in found_in(text, tables=True):
        if found.kind in INLINE or not (found.what or found.kind == "Rule"):
            if not inside:
                start, end = (start if end else found.start), max(end, found.end)
            continue
        if end:
            yield "words", start, end
            end = 0
        if kind := _KINDS.get(found.kind):
            inside = found.what == "Start"
            if found.what != "End":
                yield kind, found.start, found.end
