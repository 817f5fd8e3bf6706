"""What in a text addresses us: a mention or a command, in words that are the author's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gofer_github.markdown import INLINE, found_in

LONGEST = 65_536
COMMAND = "gofer"
"""What a command begins with behind its slash, whatever the App could be called."""
_NOT_OURS = re.compile(r"<(/?)(?:code|pre|kbd|samp|tt|blockquote|q)(?![\w-])", re.I)
"""HTML that says: this is code, or this is somebody else's."""
_ASIDE = frozenset({"BlockQuote", "CodeBlock", "Image"})
"""Markdown that says the same, and the words for those who do not see a picture."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """How a text addresses us."""

    trigger: str
    """mention, command, or empty for not at all."""
    command: str = ""
    """The first word behind /gofer."""
    arguments: str = ""


NOT_AT_ALL = Spoken("")


def spoken(text: str, handle: str) -> Spoken:
    """Read a text; code, quotes and HTML are not its author speaking to us."""
    if not any(name in text.lower() for name in (handle.lower(), COMMAND)):
        return NOT_AT_ALL
    own = "\n".join(own_words(text[:LONGEST].encode("utf-8", "replace").decode()))
    name = re.escape(handle)
    command = re.search(rf"^[ \t]*/(?:{COMMAND}|{name})(?![\w-])[ \t]*([\w-]*)[ \t]*(.*)$", own, re.I | re.M)
    if command is not None:
        return Spoken("command", command.group(1).lower(), command.group(2).strip())
    # A team (@org/gofer, @gofer/team), an address or a longer name is somebody else.
    mention = rf"(?<![\w@/.`-])@{name}(?:\[bot\])?(?![\w/-]|\.\w)"
    return Spoken("mention") if re.search(mention, own, re.I) else NOT_AT_ALL


def own_words(text: str) -> Iterator[str]:
    """The lines of a Markdown text that are plain words: no code, no quotes, no HTML."""
    pieces: list[str] = []
    aside = marked = 0
    for found in found_in(text):
        if found.what and found.kind not in INLINE:
            pieces.append("\n")
        if found.kind in _ASIDE:
            aside += 1 if found.what == "Start" else -1
            pieces.append("\x00")
        elif found.kind in ("SoftBreak", "HardBreak"):
            pieces.append("\n")
        elif found.kind in ("Html", "InlineHtml"):
            marked = _marked_after(found.words, marked)
            pieces.append("\x00")
        elif found.kind in ("Text", "Code"):
            pieces.append("\x00" if aside or marked or found.kind == "Code" else found.words)
    yield from "".join(pieces).split("\n")


def _marked_after(html: str, marked: int) -> int:
    """How many elements of code or quotation are open behind a piece of HTML."""
    for found in _NOT_OURS.finditer(html):
        marked = max(0, marked - 1) if found.group(1) else marked + 1
    return marked
