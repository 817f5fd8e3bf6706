"""What GitHub's page does not show of a piece of Markdown outside code blocks: comments, attributes, titles.

Only what GitHub takes for HTML is treated as such: `Map<String, Integer>`, `<me@example.com>` and `a <b && c> 0`
are words like any other, and a code span shows whatever stands in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

_NAMES = frozenset(
    re.findall(
        r"\w+",
        "a abbr address area article aside audio b base bdi bdo big blockquote body br button canvas caption center "
        "cite code col colgroup data dd del details dfn dialog dir div dl dt em embed fieldset figcaption figure font "
        "footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html i img input ins kbd label legend li "
        "link main map mark menu meta meter nav object ol optgroup option output p param picture pre progress q rp rt "
        "ruby s samp section select small source span strike strong sub summary sup svg table tbody td tfoot th thead "
        "time tr track tt u ul var video wbr",
    )
)
_VALUE = r"(?:[^\s\"'=<>`]++|\"[^\"]*+\"|'[^']*+')"
_RAW = r"(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+"
_HTML = r"<!--|<\?|<!\[CDATA\[|<![a-zA-Z]++\s|<(?=[a-zA-Z])"
_OPENER = re.compile(rf"\\[!-/:-@\[-`{{-~]|`+|{_HTML}")
_RAW_OPENER = re.compile(_HTML)
_ATTRIBUTES = rf"(?:\s++[a-zA-Z_:][\w.:-]*+(?:\s*+=\s*+{_VALUE})?+)*+"
_TAG = re.compile(rf"<([a-zA-Z][a-zA-Z0-9-]*+)({_ATTRIBUTES})\s*+/?>")
# In an HTML block a browser forgives a lot.
_RAW_TAG = re.compile(rf"<([a-zA-Z][a-zA-Z0-9-]*+)((?:[\s/]{_RAW})?+)>")
_UNENDED = re.compile(rf"<([a-zA-Z][a-zA-Z0-9-]*+)\s{_RAW}[\"']")
_ADDRESS = re.compile(rf"\b(href|src)\s*=\s*({_VALUE})", re.I)
# To the next place where a link may begin, and no further: a text of nothing else would be read again and again.
_WHERE_TO = r"(?:[^)\s\]]|\](?!\())"
_TITLE = r"(?:\"[^\"]*+\"|'[^']*+')"
_IMAGE = re.compile(rf"!\[((?:[^\]!]|!(?!\[)){{0,2000}}+)\]\(({_WHERE_TO}{{0,2000}}+)(?:\s++{_TITLE})?\)")
_LINK_TITLE = re.compile(rf"(\]\({_WHERE_TO}{{1,2000}}+)\s++{_TITLE}\)")
_MARKS = re.compile(r"[\\`<]|\]\(")
_CELL = re.compile(r"((?<!\\)\||\n)")
_NO_END = "[hidden: HTML that does not end, and all below it]"


def shown_inline(text: str, *, cells: bool = False) -> str:
    """The words of one block. In a table nothing reaches from one cell into the next."""
    pieces = _CELL.split(text) if cells else [text]
    return "".join(_shown_words(piece) for piece in pieces)


def shown_block(text: str) -> tuple[str, bool]:
    """An HTML block, and whether it ends. Where a comment or a value does not, the page shows nothing below it."""
    pieces, at = [], 0
    while found := _RAW_OPENER.search(text, at):
        pieces.append(text[at : found.start()])
        opener, at = found.group(), found.start()
        if _is_unended(opener, text, at):
            return "".join([*pieces, _NO_END]), False
        shown, at = _html(opener, text, at, _RAW_TAG)
        pieces.append(shown)
    return "".join([*pieces, text[at:]]), True


def _shown_words(text: str) -> str:
    if not _MARKS.search(text):
        return text
    shown = []
    for is_code, group in groupby(_pieces(text), lambda piece: piece[0]):
        joined = "".join(piece for _, piece in group)
        shown.append(joined if is_code else _without_titles(joined))
    return "".join(shown)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The pieces of a block's words, in order, each with whether it is code."""
    runs, at = _runs(text), 0
    closed = {closer: text.rfind(closer) for closer in ("-->", "?>", "]]>", ">")}
    while found := _OPENER.search(text, at):
        yield False, text[at : found.start()]
        opener, at = found.group(), found.start()
        if opener[0] == "`":
            end = _span_end(runs, at, len(opener))
            yield end > 0, text[at : end or found.end()]
            at = end or found.end()
        elif opener[0] == "\\" or closed[_closer(opener)] < at:
            yield False, opener
            at = found.end()
        else:
            shown, at = _html(opener, text, at, _TAG)
            yield False, shown
    yield False, text[at:]


def _runs(text: str) -> dict[int, list[int]]:
    """Where the backticks are, by how many there are in a row."""
    runs: dict[int, list[int]] = defaultdict(list)
    for found in re.finditer("`+", text):
        runs[len(found.group())].append(found.start())
    return runs


def _span_end(runs: dict[int, list[int]], at: int, size: int) -> int:
    """Where the code span that begins here ends; 0 if none does."""
    later = runs.get(size, [])
    next_ = bisect_left(later, at + size)
    return later[next_] + size if next_ < len(later) else 0


def _closer(opener: str) -> str:
    return {"<!--": "-->", "<?": "?>", "<![CDATA[": "]]>"}.get(opener, ">")


def _html(opener: str, text: str, at: int, tag: re.Pattern[str]) -> tuple[str, int]:
    """What is seen of the HTML that begins here, if it is any, and where to read on."""
    if opener == "<":
        found = tag.match(text, at)
        if found is None or found.group(1).lower() not in _NAMES:
            return opener, at + 1
        kept = "".join(f" {name}={value}" for name, value in _ADDRESS.findall(found.group(2)))
        return f"<{found.group(1)}{kept}>", found.end()
    if opener == "<!--":
        return "", _comment_end(text, at)
    end = text.find(">", at)  # to a browser, all others are comments that end at the first one
    return ("", end + 1) if end > 0 else (opener, at + len(opener))


def _comment_end(text: str, at: int) -> int:
    """Where a comment ends that begins here; 0 if nowhere."""
    if short := re.compile("<!---?>").match(text, at):
        return short.end()
    end = text.find("-->", at + 4)
    return end + 3 if end > 0 else 0


def _is_unended(opener: str, text: str, at: int) -> bool:
    if opener == "<!--":
        return not _comment_end(text, at)
    if opener != "<" or _RAW_TAG.match(text, at):
        return False
    found = _UNENDED.match(text, at)
    return found is not None and found.group(1).lower() in _NAMES


def _without_titles(text: str) -> str:
    text = _IMAGE.sub(lambda found: f"[image: {found.group(1)}]({found.group(2)})", text)
    return _LINK_TITLE.sub(r"\1)", text)
