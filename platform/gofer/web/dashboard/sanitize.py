"""Making other people's text harmless to look at: nothing in it acts, and nothing in it hides."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_HIGHLIGHTED = 20_000
"""Characters of one code block that are coloured; beyond this it is shown as it is."""

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
"""What terminals colour by: left out, since it says nothing."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, bidirectional overrides, invisible marks, halves of pairs: all but tab and line feed."""

_TAGS = {
    *(
        "p",
        "br",
        "hr",
        "em",
        "strong",
        "s",
        "del",
        "code",
        "pre",
        "blockquote",
        "ul",
        "ol",
        "li",
        "a",
        "span",
    ),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {"a": {"href", "title"}, "span": {"class"}, "code": {"class"}, "ol": {"start"}}


def inert(text: str) -> str:
    """Plain text with everything a screen would obey or hide made visible."""
    return _HIDDEN.sub(_shown, _COLOURS.sub("", text.replace("\r\n", "\n")))


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def ticks(text: str) -> Markup:
    """A sentence as HTML: text between backticks is code, and everything else is plain text."""
    parts = inert(text).split("`")
    if len(parts) % 2 == 0:
        return escape(inert(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def words(text: str, *, breaks: bool = True) -> Markup:
    """Markdown as HTML that holds no script, no picture and no style. With `breaks`, a line's end stays one: people
    and models mean it, unlike a file that is wrapped to fit a screen."""
    html = _markdown(breaks).render(inert(text))
    import nh3  # not needed until somebody looks at a message

    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704 - nh3 has just cleaned it


@lru_cache(maxsize=2)
def _markdown(breaks: bool) -> MarkdownIt:
    # Sixty modules, which the first page does without.
    from markdown_it import MarkdownIt

    options = {"html": False, "linkify": False, "breaks": breaks, "highlight": _coloured}
    return MarkdownIt("commonmark", options).enable(["table", "strikethrough"])


def _coloured(code: str, language: str, _: object) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language or len(code) > MAX_HIGHLIGHTED:
        return str(escape(code))
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return str(escape(code))
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))
