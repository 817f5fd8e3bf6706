"""Cleans text that strangers may have written: it keeps what a reader of the page sees, and removes what is hidden.

A body is Markdown, in which code is shown as it is written. A title or a log is plain text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

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
    """A Markdown text as a reader sees it: hidden parts are removed, and alternative texts are shown as such."""
    try:
        shown = "\n".join(_shown(_visible(text)))
    except TooIntricate:
        return "[hidden: a table with far more cells than words]"
    return re.sub(r"\A(?:[ \t]*+\n)++", "", shown).rstrip()


def plain(text: str) -> str:
    """A plain text, such as a log, without invisible characters."""
    return _visible(_ESCAPE.sub("", text))


def line(text: str, limit: int = 200) -> str:
    """A title, a name or a branch: on one line, short, without invisible characters."""
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
    """The link definitions of a text without their titles, which the page does not show. `[//]: # (words)` is an old
    way to hide words in Markdown."""
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
# Only to the next place where a link may begin. Otherwise a text full of them would be read again and again.
_WHERE_TO = r"(?:[^)\s\]]|\](?!\())"
_TITLE = r"(?:\"[^\"]*+\"|'[^']*+')"
_IMAGE = re.compile(rf"!\[((?:[^\]!]|!(?!\[)){{0,2000}}+)\]\(({_WHERE_TO}{{0,2000}}+)(?:\s++{_TITLE})?\)")
_LINK_TITLE = re.compile(rf"(\]\({_WHERE_TO}{{1,2000}}+)\s++{_TITLE}\)")
_MARKS = re.compile(r"[\\`<]|\]\(")
_CELL = re.compile(r"((?<!\\)\||\n)")
_NO_END = "[hidden: HTML that does not end, and all below it]"


def shown_inline(text: str, *, cells: bool = False) -> str:
    """The words of one block. In a table, nothing reaches from one cell into the next."""
    pieces = _CELL.split(text) if cells else [text]
    return "".join(_shown_words(piece) for piece in pieces)


def shown_block(text: str) -> tuple[str, bool]:
    """The visible part of an HTML block, and whether the block ends. When a comment or a value does not end, the page
    shows nothing below it."""
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
    """The positions of backticks, by how many there are in a row."""
    runs: dict[int, list[int]] = defaultdict(list)
    for found in re.finditer("`+", text):
        runs[len(found.group())].append(found.start())
    return runs


def _span_end(runs: dict[int, list[int]], at: int, size: int) -> int:
    """The end of the code span that begins here; 0 when there is none."""
    later = runs.get(size, [])
    next_ = bisect_left(later, at + size)
    return later[next_] + size if next_ < len(later) else 0


def _closer(opener: str) -> str:
    return {"<!--": "-->", "<?": "?>", "<![CDATA[": "]]>"}.get(opener, ">")


def _html(opener: str, text: str, at: int, tag: re.Pattern[str]) -> tuple[str, int]:
    """The visible part of the HTML that begins here, if any, and where to read on."""
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
    """The end of the comment that begins here; 0 when it does not end."""
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


Kind = Literal["words", "table", "code", "html", "aside"]
_KINDS: dict[str, Kind] = {
    "CodeBlock": "code",
    "HtmlBlock": "html",
    "Paragraph": "words",
    "Heading": "words",
    "Rule": "words",
    "Table": "table",
}


def sections(text: str) -> Iterator[tuple[Kind, str]]:
    """Every line once and in order. *Aside* are lines of no block: blank lines and link definitions. Raises
    TooIntricate."""
    lines = text.split("\n")
    marks: list[tuple[Kind, int]] = [("aside", -1)] * len(lines)
    starts = [0, *accumulate(len(line.encode()) + 1 for line in lines)]
    done = 0
    for number, (kind, start, end) in enumerate(_blocks(text)):
        first = max(done, bisect_right(starts, start) - 1)
        done = max(first, bisect_right(starts, max(start, end - 1)))
        marks[first:done] = [(kind, number)] * (done - first)
    at = 0
    for (kind, _), group in groupby(marks):
        size = sum(1 for _ in group)
        yield kind, "\n".join(lines[at : at + size])
        at += size


def _blocks(text: str) -> Iterator[tuple[Kind, int, int]]:
    """The innermost blocks in order. Words in a list item without a paragraph count as one."""
    start = end = 0
    inside = False
    for found in found_in(text, tables=True):
        if found.kind in INLINE or not (found.what or found.kind == "Rule"):
            if not inside:
                start, end = (start if end else found.start), max(end, found.end)
            continue
        if end:
            yield "words", start, end
            end = 0
        if kind := _KINDS.get(found.kind):
            inside = found.what == "Start"
            if found.what != "End":
                yield kind, found.start, found.end


INLINE = frozenset({"Emphasis", "Strong", "Strikethrough", "Link", "Image"})
"""What begins and ends within a block."""


class MarkdownPiece(NamedTuple):
    """One event of the parser: something begins or ends, or is there as a whole."""

    what: str
    """Start, End or empty."""
    kind: str
    words: str
    start: int
    end: int
    """Bytes of the text as UTF-8."""


class TooIntricate(Exception):
    """A table with far more cells than text."""


def found_in(text: str, *, tables: bool = False) -> Iterator[MarkdownPiece]:
    """Every piece in order. Raises TooIntricate beyond two events a character, which only such a table has."""
    import pyromark  # not needed until somebody writes

    options = pyromark.Options.ENABLE_TABLES if tables else pyromark.Options(0)
    left = 2 * len(text) + 1000
    for event, at in pyromark.events_with_range(text, options=options):
        left -= 1
        if left < 0:
            raise TooIntricate
        yield _found(event, at["start"], at["end"])


def _found(event: Any, start: int, end: int) -> MarkdownPiece:
    if isinstance(event, str):
        return MarkdownPiece("", event, "", start, end)
    ((what, value),) = event.items()
    if what not in ("Start", "End"):
        return MarkdownPiece("", what, str(value), start, end)
    return MarkdownPiece(what, value if isinstance(value, str) else next(iter(value)), "", start, end)
