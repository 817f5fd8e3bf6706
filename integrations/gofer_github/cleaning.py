"""Text that strangers may have written, without what a reader of the page would not see."""

from __future__ import annotations

import re

# Bidi controls, joiners, tags, fillers, variation selectors: characters that hide or reorder.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_OTHER_HIDDEN = re.compile(
    r"<(script|style|template|title|noscript)\b.*?(?:</\1\s*>|\Z)|<[!?][^>]*>", re.S | re.I
)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)((?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>")
_ADDRESS = re.compile(r"\b(href|src)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>]+)", re.I)
_IMAGE = re.compile(r"!\[([^\]]{0,2000})\]\(([^)\s]{0,2000})(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)")
_LINK_TITLE = re.compile(r"(\]\([^)\s]{1,2000})\s+(?:\"[^\"]*\"|'[^']*')\)")
_REFERENCE = re.compile(r"^[ ]{0,3}\[[^\]\n]+\]:[ \t]*\S+.*$", re.M)


def clean(text: str) -> str:
    """The text as a reader sees it: hidden parts removed, alternative texts shown for what they are."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
    text = _CONTROL.sub("", _INVISIBLE.sub("", text))
    text = _OTHER_HIDDEN.sub("", _COMMENT.sub("", text))
    text = _TAG.sub(_without_attributes, text)
    text = _IMAGE.sub(lambda found: f"[image: {found.group(1)}]({found.group(2)})", text)
    return _REFERENCE.sub(_shown_reference, _LINK_TITLE.sub(r"\1)", text)).strip()


def line(text: str, limit: int = 200) -> str:
    """The same for a title, a name or a branch: on one line, and short."""
    return " ".join(clean(text).split())[:limit]


def _without_attributes(found: re.Match[str]) -> str:
    kept = "".join(f" {name}={value}" for name, value in _ADDRESS.findall(found.group(3)))
    return f"<{found.group(1)}{found.group(2)}{kept}>"


def _shown_reference(found: re.Match[str]) -> str:
    # [//]: # (words) is an old way of hiding words in Markdown.
    label = found.group(0).strip()
    return "" if label.startswith(("[//]:", "[comment]:", "[]:")) or ": #" in label else label
