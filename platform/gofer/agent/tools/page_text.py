"""The readable text of a web page."""

from __future__ import annotations

from html.parser import HTMLParser

_SKIP = {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}
_BLOCK = {
    "p", "div", "section", "article", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "table", "ul",
    "ol", "blockquote", "header", "footer", "main", "nav", "dt", "dd", "hr", "figure",
}  # fmt: skip
MAX_DEPTH = 10_000


def page_text(html: str) -> str:
    """Words, headings, list items and link targets; no scripts, styles or comments."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    text: list[str] = []
    for line in lines:
        if line or (text and text[-1]):
            text.append(line)
    title = " ".join("".join(parser.title).split())
    return (f"# {title}\n\n" if title else "") + "\n".join(text).strip()


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self._skip = 0
        self._in_title = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        if tag in _SKIP:
            self._skip = min(self._skip + 1, MAX_DEPTH)
        if tag in _BLOCK:
            self.parts.append("\n- " if tag == "li" else "\n")
        if tag in ("h1", "h2", "h3", "h4"):
            self.parts.append("#" * int(tag[1]) + " ")
        if tag == "a":
            self._links.append(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in _SKIP:
            self._skip = max(0, self._skip - 1)
        if tag in _BLOCK:
            self.parts.append("\n")
        if tag == "a" and self._links:
            href = self._links.pop()
            if href.startswith(("http://", "https://")) and not self._skip:
                self.parts.append(f" ({href[:300]})")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._skip:
            self.parts.append(data)
