"""Text that strangers may have written, without what a reader of the page would not see, and with all that he would.

A body is Markdown, in which code is shown as it stands; a title and a log are not even that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gofer_github.hidden import shown_block, shown_inline
from gofer_github.parsing import TooIntricate
from gofer_github.sections import sections

# Bidi controls, joiners, tags, fillers, variation selectors: characters that hide or reorder.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\))")
_REFERENCE = re.compile(r"^([\s>*+-]*)\[([^\]]*)\]:[ \t]*(\S+)")
_NO_LABELS = frozenset({"//", "comment", ""})


def clean(text: str) -> str:
    """A Markdown text as a reader sees it: hidden parts removed, alternative texts shown for what they are."""
    try:
        shown = "\n".join(_shown(_visible(text)))
    except TooIntricate:
        return "[hidden: a table with far more cells than words]"
    return re.sub(r"\A(?:[ \t]*+\n)++", "", shown).rstrip()


def plain(text: str) -> str:
    """A text that is no Markdown, such as a log: only characters that nobody sees go."""
    return _visible(_ESCAPE.sub("", text))


def line(text: str, limit: int = 200) -> str:
    """The same for a title, a name or a branch: on one line, and short."""
    return " ".join(_visible(text).split())[:limit]


def _visible(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", _INVISIBLE.sub("", text))


def _shown(text: str) -> Iterator[str]:
    for kind, part in sections(text):
        if kind == "code":
            yield part
        elif kind == "html":
            shown, ended = shown_block(part)
            yield shown
            if not ended:
                return
        elif kind == "aside":
            yield from _references(part)
        else:
            yield shown_inline(part, cells=kind == "table")


def _references(part: str) -> Iterator[str]:
    """Where links lead that are named elsewhere in the text, without their titles; the rest is not on the page.

    [//]: # (words) is an old way of hiding words in Markdown."""
    after = False
    for row in part.split("\n"):
        found = _REFERENCE.match(row)
        if found is None:
            if not row.strip() or not after:
                yield row
            continue
        after = True
        before, label, address = found.groups()
        if label not in _NO_LABELS and not address.startswith("#"):
            yield f"{before}[{label}]: {address}"
