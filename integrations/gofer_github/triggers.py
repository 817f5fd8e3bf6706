"""Find the mention or command that addresses us, in the author's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gofer_github.markdown import INLINE, found_in

MAX_TEXT = 65_536
COMMAND = "gofer"
"""The name of our command, without its slash, whatever the App is called."""
_NOT_OURS = re.compile(r"<(/?)(?:code|pre|kbd|samp|tt|blockquote|q)(?![\w-])", re.I)
"""HTML for code and quotations."""
_ASIDE = frozenset({"BlockQuote", "CodeBlock", "Image"})
"""Markdown for code and quotations, and the alternative text of pictures."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """How a text addresses us."""

    trigger: str
    """mention, command, or empty when it does not."""
    command: str = ""
    """The first word after /gofer."""
    arguments: str = ""


NOT_AT_ALL = Spoken("")
_LONG = frozenset({"goal"})
"""Commands whose arguments are all that follows."""


def spoken(text: str, handle: str) -> Spoken:
    """How a text addresses us. Code, quotations and HTML do not count."""
    if not any(name in text.lower() for name in (handle.lower(), COMMAND)):
        return NOT_AT_ALL
    own = "\n".join(own_words(text[:MAX_TEXT].encode("utf-8", "replace").decode()))
    name = re.escape(handle)
    command = re.search(rf"^[ \t]*/(?:{COMMAND}|{name})(?![\w-])[ \t]*([\w-]*)[ \t]*(.*)$", own, re.I | re.M)
    if command is not None:
        name = command.group(1).lower()
        # What is wanted of a goal may be longer than a line.
        rest = own[command.start(2) :] if name in _LONG else command.group(2)
        return Spoken("command", name, rest.replace("\x00", "").strip())
    # A team (@org/gofer, @gofer/team), an e-mail address or a longer name is somebody else.
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
    """How many elements of code or quotation are open after a piece of HTML."""
    for found in _NOT_OURS.finditer(html):
        marked = max(0, marked - 1) if found.group(1) else marked + 1
    return marked
