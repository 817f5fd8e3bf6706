"""A Markdown text, cut into what is code, what is HTML and what is words, by the lines they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Literal

from markdown_it import MarkdownIt

Kind = Literal["words", "table", "code", "html", "aside"]
_KINDS: dict[str, Kind] = {
    "fence": "code",
    "code_block": "code",
    "html_block": "html",
    "paragraph_open": "words",
    "heading_open": "words",
    "hr": "words",
    "table_open": "table",
}


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    # Where the blocks are is all that is asked.
    return MarkdownIt("commonmark", {"maxNesting": 100}).enable("table").disable("inline")


def sections(text: str) -> Iterator[tuple[Kind, str]]:
    """Every line once and in order. Aside is what belongs to no block: blank lines, and where links lead."""
    lines = text.split("\n")
    marks: list[tuple[Kind, int]] = [("aside", -1)] * len(lines)
    for number, token in enumerate(_markdown().parse(text)):
        if token.map is not None and token.type in _KINDS:
            first, end = token.map[0], min(token.map[1], len(lines))
            marks[first:end] = [(_KINDS[token.type], number)] * (end - first)
    at = 0
    for (kind, _), group in groupby(marks):
        size = sum(1 for _ in group)
        yield kind, "\n".join(lines[at : at + size])
        at += size
