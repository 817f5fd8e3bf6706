"""What in a text addresses us: a mention or a command, in words that are the author's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

LONGEST = 65_536
COMMAND = "gofer"
"""What a command begins with behind its slash, whatever the App could be called."""
_NOT_OURS = re.compile(r"<(/?)(?:code|pre|kbd|samp|tt|blockquote|q)(?![\w-])", re.I)
"""HTML that says: this is code, or this is somebody else's."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """How a text addresses us."""

    trigger: str
    """mention, command, or empty for not at all."""
    command: str = ""
    """The first word behind /gofer."""
    arguments: str = ""


NOT_AT_ALL = Spoken("")


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"maxNesting": 20})


def spoken(text: str, handle: str) -> Spoken:
    """Read a text; code, quotes and HTML are not its author speaking to us."""
    if not any(name in text.lower() for name in (handle.lower(), COMMAND)):
        return NOT_AT_ALL
    own = "\n".join(own_words(text[:LONGEST]))
    name = re.escape(handle)
    command = re.search(rf"^[ \t]*/(?:{COMMAND}|{name})(?![\w-])[ \t]*([\w-]*)[ \t]*(.*)$", own, re.I | re.M)
    if command is not None:
        return Spoken("command", command.group(1).lower(), command.group(2).strip())
    # A team (@org/gofer, @gofer/team), an address or a longer name is somebody else.
    mention = rf"(?<![\w@/.`-])@{name}(?:\[bot\])?(?![\w/-]|\.\w)"
    return Spoken("mention") if re.search(mention, own, re.I) else NOT_AT_ALL


def own_words(text: str) -> Iterator[str]:
    """The lines of a Markdown text that are plain words: no code, no quotes, no HTML."""
    depth, marked = 0, 0
    for token in _markdown().parse(text):
        if token.type == "blockquote_open":
            depth += 1
        elif token.type == "blockquote_close":
            depth -= 1
        elif token.type == "html_block":
            marked = _marked_after(token.content, marked)
        elif token.type == "inline":
            words, marked = _inline(token.children or [], marked)
            yield from words.split("\n") if depth == 0 else ()


def _marked_after(html: str, marked: int) -> int:
    """How many elements of code or quotation are open behind a piece of HTML."""
    for found in _NOT_OURS.finditer(html):
        marked = max(0, marked - 1) if found.group(1) else marked + 1
    return marked


def _inline(children: list[Token], marked: int) -> tuple[str, int]:
    pieces = []
    for child in children:
        if child.type in ("softbreak", "hardbreak"):
            pieces.append("\n")
        elif child.type in ("code_inline", "html_inline", "image"):
            marked = _marked_after(child.content, marked) if child.type == "html_inline" else marked
            pieces.append("\x00")
        elif child.type == "text":
            pieces.append("\x00" if marked else child.content)
    return "".join(pieces), marked
