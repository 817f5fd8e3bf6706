"""The readable text of a web page.

Pages are written by anybody, and the parsers at hand take minutes for some of those that are made to be slow. This one
looks at each character a few times at most, whatever it is given, and needs no page to be well formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_SKIP = {"noscript", "template", "svg", "iframe", "object"}
_RAW = {"script", "style", "textarea", "xmp", "title"}
"""What is in them is not markup, up to their own end."""
_BLOCK = {
    "p", "div", "section", "article", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "table", "ul",
    "ol", "blockquote", "header", "footer", "main", "nav", "dt", "dd", "hr", "figure",
}  # fmt: skip
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]{0,60})")
_HREF = re.compile(r"\shref\s{0,9}=\s{0,9}(?:\"([^\"]{0,2000})|'([^']{0,2000})|([^\s\"'>]{1,2000}))", re.I)
_ENDS = {name: re.compile(f"</{name}[\\s/>]", re.I) for name in _RAW}
_TOO_BIG = re.compile(r"&#(?:\d{8,}|[xX][0-9a-fA-F]{7,});?")
_IN_QUOTES = 2000
"""Characters in which the other quote of an attribute is looked for."""


def page_text(html: str) -> str:
    """Words, headings, list items and link targets; no scripts, styles or comments."""
    page = _Page()
    for tag, words in _pieces(html):
        page.take(tag, words)
    text: list[str] = []
    for line in (" ".join(line.split()) for line in "".join(page.parts).split("\n")):
        if line or (text and text[-1]):
            text.append(line)
    return (f"# {page.title}\n\n" if page.title else "") + "\n".join(text).strip()


def _pieces(html: str) -> Iterator[tuple[str, str]]:
    """Tags, and what stands between them with an empty tag; of `script` and the like also what they hold."""
    at = 0
    while (start := html.find("<", at)) >= 0:
        yield "", html[at:start]
        found = _NAME.match(html, start)
        if found is None:
            at = _after_other(html, start)
            if at == start + 1:
                yield "", "<"
            continue
        at = _tag_end(html, start)
        tag = html[start:at]
        yield tag, ""
        if found[1].lower() in _RAW and not tag.startswith("</"):
            end = _ENDS[found[1].lower()].search(html, at)
            inside = html[at : end.start() if end else len(html)]
            at = end.start() if end else len(html)
            yield tag, inside
    yield "", html[at:]


def _after_other(html: str, start: int) -> int:
    """Where a comment, a declaration or the like ends; behind the bracket, if it is just that."""
    if html.startswith("<!--", start):
        end = html.find("-->", start + 4)
        return end + 3 if end >= 0 else len(html)
    if html.startswith(("<!", "<?", "</"), start):
        end = html.find(">", start)
        return end + 1 if end >= 0 else len(html)
    return start + 1


def _tag_end(html: str, start: int) -> int:
    """Behind the bracket that ends a tag, which is not one in quotes."""
    end = html.find(">", start)
    for quote in "\"'":
        if end >= 0 and html.count(quote, start, min(end, start + _IN_QUOTES)) % 2:
            closing = html.find(quote, end, end + _IN_QUOTES)
            behind = html.find(">", closing, closing + _IN_QUOTES) if closing >= 0 else -1
            end = behind if behind >= 0 else end
    return end + 1 if end >= 0 else len(html)


class _Page:
    """Collects the words."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.title = ""
        self._skip = 0
        self._links: list[str] = []

    def take(self, tag: str, words: str) -> None:
        if not tag:
            self._add(_unescaped(words))
            return
        found = _NAME.match(tag)
        name = found[1].lower() if found else ""
        if words:
            self._take_raw(name, words)
        elif tag.startswith("</"):
            self._close(name)
        else:
            self._open(name, tag)

    def _add(self, text: str) -> None:
        if text and not self._skip:
            self.parts.append(text)

    def _take_raw(self, name: str, words: str) -> None:
        if name == "title":
            self.title = self.title or " ".join(_unescaped(words[:2000]).split())
        elif name in ("textarea", "xmp"):
            self._add(_unescaped(words))

    def _open(self, name: str, tag: str) -> None:
        if name in _SKIP and not tag.endswith("/>"):
            self._skip += 1
        if name in _BLOCK:
            self._add("\n- " if name == "li" else "\n")
        if name in ("td", "th"):
            self._add(" ")
        if name in ("h1", "h2", "h3", "h4"):
            self._add("#" * int(name[1]) + " ")
        if name == "a":
            found = _HREF.search(tag, 0, 10_000)
            self._links.append(_unescaped(found[1] or found[2] or found[3] or "") if found else "")

    def _close(self, name: str) -> None:
        if name in _SKIP:
            self._skip = max(0, self._skip - 1)
        if name in _BLOCK:
            self._add("\n")
        if name == "a" and self._links:
            href = self._links.pop()
            if href.startswith(("http://", "https://")):
                self._add(f" ({href[:300]})")


def _unescaped(text: str) -> str:
    return unescape(_TOO_BIG.sub("\N{REPLACEMENT CHARACTER}", text)) if "&" in text else text
