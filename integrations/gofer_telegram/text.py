"""Render Markdown as text with entities, and split it into parts without breaking a fence or an entity."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from gofer_telegram.markdown import MAX_EVENTS, Entity, EntityRenderer, Event, clean, name_of, parse, units

LIMIT = 4096
PART_LIMIT = 3900
"""UTF-16 units per part. The rest is room for masks, and for closing and reopening a fence."""
MAX_ENTITIES = 100
"""Entities per message; Telegram drops the rest."""
MAX_WORDS = 6 * PART_LIMIT
"""Visible characters; a longer answer becomes a file."""
MAX_PARTS = 12
"""Parts; an answer with more becomes a file. Many entities can need more parts than the characters alone."""
MAX_SOURCE = 4 * MAX_WORDS
"""Characters of Markdown source; a longer one becomes a file without being parsed."""
OPENING = 200
"""Characters of an opening."""
MIN_UNSPACED = 20
NO_OPENING = "One moment …"
"""Replaces the opening of an answer that is too short for one."""
_WORD = re.compile(r"\S+")
CAPTION = 900


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text and entities for the Bot API."""

    text: str
    entities: list[Entity]

    @property
    def fits(self) -> bool:
        """Whether it fits in one message, with all its entities: some of them are links."""
        return units(self.text) <= LIMIT and len(self.entities) <= MAX_ENTITIES


def render(markdown: str) -> Rendered:
    """Render Markdown. What is far too long becomes plain text."""
    source = clean(markdown)
    if not _is_too_much(source):
        return _rendered(source)
    # Its opening is all that is shown of it.
    return Rendered(_rendered(source[:CAPTION]).text + source[CAPTION:], [])


def _rendered(source: str) -> Rendered:
    text, entities = EntityRenderer(source).render()
    if not text.strip():
        return Rendered(source.strip() or "(an empty answer)", [])
    lead = len(text) - len(text.lstrip())
    if any(one["type"] == "pre" and one["offset"] < lead for one in entities):
        lead = 0  # the indentation of its first line
    return Rendered(text[lead:].rstrip(), _trimmed(entities, text[lead:].rstrip(), lead))


def _trimmed(entities: list[Entity], text: str, lead: int) -> list[Entity]:
    """The entities around visible text, moved by the trimmed whitespace."""
    raw = text.encode("utf-16-le")  # Telegram's units are two bytes each
    found = []
    for one in entities:
        begin, end = max(0, one["offset"] - lead), min(_end(one) - lead, len(raw) // 2)
        if raw[2 * begin : 2 * max(begin, end)].decode("utf-16-le").strip():
            found.append({**one, "offset": begin, "length": end - begin})
    return _compatible(found)


def _compatible(entities: list[Entity]) -> list[Entity]:
    """The entities that Telegram accepts together."""
    entities.sort(key=lambda one: (one["offset"], -one["length"], not one["type"].endswith("blockquote")))
    kept: dict[int, Entity] = {}
    around: dict[int, Entity] = {}
    for number, one in enumerate(entities):
        around = {key: other for key, other in around.items() if _end(other) > one["offset"]}
        if not any(_excludes(other, one) for other in around.values()):
            for key in [key for key, other in around.items() if _excludes(one, other)]:
                del around[key], kept[key]
            kept[number] = around[number] = one
    return list(kept.values())


def _end(entity: Entity) -> int:
    return int(entity["offset"] + entity["length"])


def _excludes(outer: Entity, inner: Entity) -> bool:
    """Whether Telegram refuses one inside the other: nothing may be in code, and no quotation in a quotation."""
    if not outer["offset"] <= inner["offset"] <= _end(inner) <= _end(outer):
        return False
    match str(outer["type"]), str(inner["type"]):
        case ("blockquote" | "expandable_blockquote", kind):
            return kind.endswith("blockquote")
        case ("code", kind):
            return kind != "text_link"  # a link may be of code: it stays, and the code is left
        case ("text_link", kind):
            return kind == "code"
        case (kind, _):
            return kind == "pre"


def opening(full: str) -> str:
    """The first words of a text, at most half of them: what a crash leaves behind never looks like an answer."""
    head = full[: min(OPENING, len(full) // 2)]
    kept = list(_WORD.finditer(head))[: len(full.split()) // 2]
    if kept and kept[-1].end() == len(head) and not full[len(head)].isspace():
        kept.pop()  # a word that is cut in two
    if kept:
        return f"{head[: kept[-1].end()]} …"
    # Some languages put no spaces between words.
    return f"{head} …" if len(head) >= MIN_UNSPACED else NO_OPENING


def caption(full: str) -> str:
    """The caption of a file that holds the whole text. Telegram allows 1024 units."""
    head = full[:CAPTION].encode("utf-16-le")[: 2 * CAPTION].decode("utf-16-le", "ignore")
    return f"{head.rpartition(' ')[0] or head} … (all of it is in the file)"


def split(markdown: str) -> list[str]:
    """Split a reply into parts. One that needs too many stays one part, which is then sent as a file."""
    source = clean(markdown)
    if _is_too_much(source):
        return [markdown]
    fits = cache(_fits)  # the same part is looked at again and again
    parts = list(islice(_parts(source, fits), MAX_PARTS + 1))
    return parts if 0 < len(parts) <= MAX_PARTS and all(map(fits, parts)) else [markdown]


def _is_too_much(source: str) -> bool:
    return len(source) > MAX_SOURCE or is_too_much(source, MAX_WORDS)


def _parts(markdown: str, fits: Callable[[str], bool]) -> Iterator[str]:
    rest = markdown
    while not fits(rest):
        outline = Outline(rest)
        position = _position(outline, fits)
        head, rest = outline.before(position), outline.after(position)
        if head.strip():
            yield head
    if rest.strip():
        yield rest


def _fits(markdown: str) -> bool:
    # What is far too long need not be rendered to be known as too long.
    if len(markdown) > 4 * PART_LIMIT or units(markdown) > PART_LIMIT:
        return False
    rendered = _rendered(markdown)
    return units(rendered.text) <= PART_LIMIT and len(rendered.entities) <= MAX_ENTITIES


def _position(outline: Outline, fits: Callable[[str], bool]) -> int:
    """Where to cut: as late as possible, at the best kind of place."""
    for places in _places(outline.window):
        good = [place for place in places if outline.may_cut(place)]
        if good and fits(outline.before(good[-1])):
            return good[-1]
        fitting = bisect_left(good, True, key=lambda place: not fits(outline.before(place)))
        if fitting:
            return good[fitting - 1]
    return len(outline.window)


def _places(window: str) -> Iterator[list[int]]:
    """Possible cuts, best first: between paragraphs, lines, sentences, words."""
    for least in (len(window) // 3, 0):
        for pattern in (r"\n\s*\n", r"\n", r"(?<=[.!?]) ", r"\s"):
            yield [found.end() for found in re.finditer(pattern, window) if found.end() > least]


CODE, TABLE, HEADING, ITEM, QUOTE = "CodeBlock", "Table", "Heading", "Item", "BlockQuote"
MARKS = {"Strong": 2, "Emphasis": 1, "Strikethrough": 2}
"""Length of the mark on each side."""
INLINE = {*MARKS, "Link", "Image", "Code"}
MAX_MARKS = 1200
"""Inline marks in an answer; one with more becomes a file."""
_MARGIN = re.compile(r"[ >]*")
_MARKER = re.compile(r"(?:[-+*]|\d{1,9}[.)])(?: {1,4}(?! )| )?")
_FENCE = re.compile(r"(`{3,}|~{3,})([^\n]*)")
_TICKS = re.compile(r"`+")
_BLANK = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class MarkdownSpan:
    """A span of the source that the parser found."""

    kind: str
    start: int
    end: int
    fenced: bool = False

    def around(self, position: int) -> bool:
        return self.start < position < self.end


class Outline:
    """The structure of a text that matters for a cut within its window, the longest prefix that a part could hold."""

    def __init__(self, text: str) -> None:
        end = _units_end(text, PART_LIMIT - 100)
        events = _events(text, end)
        marks = [event.start for event, in_table in _with_tables(events) if _is_mark(event, in_table)]
        if len(marks) > MAX_ENTITIES:
            end = min(end, max(OPENING, marks[MAX_ENTITIES]))
        found = [span for span in map(_span, events) if span and span.start < end]
        self.window = text[:end]
        self._text = text
        self._items = [span for span in found if span.kind == ITEM]
        self._open: dict[int, list[MarkdownSpan]] = {}
        self._leaves = [span for span in found if span.kind in (CODE, TABLE, HEADING)]
        self._inline = [span for span in found if span.kind in INLINE]
        self._outermost = _outermost(self._inline)

    def leaf(self, position: int) -> MarkdownSpan | None:
        """The code block, table or heading around a position."""
        before = bisect_left(self._leaves, position, key=lambda span: span.start)  # none is within another
        return self._leaves[before - 1] if before and self._leaves[before - 1].around(position) else None

    def may_cut(self, position: int) -> bool:
        """Whether a cut here breaks nothing."""
        inline = bisect_left(self._outermost, position, key=lambda span: span.start)
        if inline and self._outermost[inline - 1].around(position):
            return False
        leaf = self.leaf(position)
        if leaf is None:
            return True
        lines_before = self._text.count("\n", leaf.start, position)
        if leaf.kind == HEADING or position != self._line(position):
            return False
        if leaf.kind == TABLE:
            return lines_before > 2  # its head, the line below, and at least one row
        # Neither right behind the opening fence nor right before the closing one.
        return lines_before > leaf.fenced and self._text.count("\n", position, leaf.end) >= leaf.fenced

    def before(self, position: int) -> str:
        """The text before a cut, with open marks and fences closed."""
        head, leaf = self._text[:position], self.leaf(position)
        if leaf is None:
            return head.rstrip() + "".join(reversed(marks)) if (marks := self._marks(position)) else head
        if leaf.kind == CODE and leaf.fenced:
            mark, _ = self._fence(leaf)
            return f"{head.rstrip(chr(10))}\n{self._margin(leaf.start)}{mark}\n"
        return head

    def after(self, position: int) -> str:
        """The text after a cut, with open marks, fences and table heads repeated."""
        rest, leaf = self._moved_left(position), self.leaf(position)
        open_here = self._indents(position, position)
        margin = _moved(self._margin(leaf.start if leaf else position), open_here)
        within = position != self._line(position)
        if leaf is None:
            if self._indented_code_at(position):
                return rest  # its indentation is what makes it code
            return (margin + "".join(self._marks(position)) if within else "") + rest.lstrip(" ")
        if leaf.kind == TABLE:
            names, line, *_ = self._text[leaf.start : leaf.end].splitlines(keepends=True)
            return margin + names + _moved(line, open_here) + rest
        if leaf.kind == CODE and leaf.fenced:
            return f"{margin}{''.join(self._fence(leaf))}\n{margin if within else ''}{rest}"
        return rest

    def _indented_code_at(self, position: int) -> bool:
        """Whether an indented code block starts at the line of a position."""
        unfenced = (span for span in self._leaves if span.kind == CODE and not span.fenced)
        return any(self._line(span.start) == position for span in unfenced)

    def _marks(self, position: int) -> list[str]:
        """The open inline marks at a position, from the outside in."""
        found = []
        for span in self._inline:
            if span.around(position) and span.kind in MARKS:
                found.append(self._text[span.start : span.start + MARKS[span.kind]])
            elif span.around(position) and (ticks := _TICKS.match(self._text, span.start)):
                found.append(ticks[0])
        return found

    def _fence(self, code: MarkdownSpan) -> tuple[str, str]:
        """The fence and the language of a code block."""
        found = _FENCE.match(self._text, code.start)
        return (found[1], found[2]) if found else ("```", "")

    def _line(self, position: int) -> int:
        """The start of the line of a position."""
        return self._text.rfind("\n", 0, position) + 1

    def _margin(self, position: int) -> str:
        """The margin of a line at a position: quotation marks, and the indentation of list items."""
        line = self._line(position)
        behind = [self._indent(item)[1] for item in self._items if line <= item.start < position]
        marks = _MARGIN.match(self._text, line + max(behind, default=0), position)
        return re.sub("[^>]", " ", self._text[line : marks.end() if marks else line])

    def _moved_left(self, position: int) -> str:
        """The text after a position, without the indentation of the list items that are open there."""
        end = max((item.end for item in self._open_items(position)), default=position)
        at, lines = position, []
        for line in self._text[position:end].splitlines(keepends=True):
            whole = at > position or at == self._line(at)
            lines.append(_moved(line, self._indents(position, at)) if whole else line)
            at += len(line)
        return "".join(lines) + self._text[end:]

    def _indents(self, position: int, line: int) -> list[tuple[int, int]]:
        """The columns of the list items that contain both a cut and a line."""
        return [self._indent(item) for item in self._open_items(position) if item.end > line]

    def _open_items(self, position: int) -> list[MarkdownSpan]:
        """The list items around a cut, cached because every line after it asks."""
        if position not in self._open:
            self._open[position] = [item for item in self._items if item.around(position)]
        return self._open[position]

    def _indent(self, item: MarkdownSpan) -> tuple[int, int]:
        """The columns by which the lines of a list item are indented."""
        before = self._text[self._line(item.start) : item.start]
        bare = before.rstrip(" ")
        marker = _MARKER.match(self._text, item.start)
        width = marker.end() - item.start if marker else 2
        return min(len(before), len(bare) + bare.endswith(">")), len(before) + width


def _moved(line: str, indents: list[tuple[int, int]]) -> str:
    """A line without these columns of its margin."""
    margin = _MARGIN.match(line)
    end = margin.end() if margin else 0
    kept = [
        character
        for column, character in enumerate(line[:end])
        if character == ">" or not any(begin <= column < stop for begin, stop in indents)
    ]
    return "".join(kept) + line[end:]


def is_too_much(markdown: str, max_words: int) -> bool:
    """Whether a text has more characters, marks or parser events than an answer in messages can have."""
    words = marks = 0
    for number, (event, in_table) in enumerate(_with_tables(parse(markdown))):
        name, value = name_of(event.value)
        words += len(value) if name in ("Text", "Code") else 0
        marks += _is_mark(event, in_table)
        if words > max_words or marks > MAX_MARKS or number >= MAX_EVENTS:
            return True
    return False


def _with_tables(events: list[Event]) -> Iterator[tuple[Event, bool]]:
    """The events, each with whether it is in a table."""
    in_table = False
    for event in events:
        if TABLE in (name_of(event.value)[0], _ended(event.value)):
            in_table = not in_table
        yield event, in_table


def _is_mark(event: Event, in_table: bool) -> bool:
    """Whether an entity may come of what begins here. A table is one entity, whatever is in its cells."""
    name, _ = name_of(event.value)
    return name == TABLE or (not in_table and (name in INLINE or name in (CODE, HEADING, QUOTE)))


def _ended(event: Any) -> Any:
    return event.get("End") if isinstance(event, dict) else None


def _units_end(text: str, limit: int) -> int:
    """The position behind the last character that fits in so many UTF-16 units."""
    head = text[:limit]
    return len(head.encode("utf-16-le")[: 2 * limit].decode("utf-16-le", "ignore"))


def _events(markdown: str, end: int) -> list[Event]:
    """The events that matter for a cut before a position.

    No more is parsed than the ends of what begins before it need: lists and code may go on behind a blank line, nothing
    else does. A paragraph that goes on for far longer is cut short."""
    size = end
    while True:
        gap = _BLANK.search(markdown, size, size + 2 * end)
        size = gap.start() if gap else size + 2 * end
        events = parse(markdown[:size])
        if size >= len(markdown) or not any(event.start < end and _goes_on(event, size) for event in events):
            return events
        size *= 2


def _goes_on(event: Event, size: int) -> bool:
    return event.end >= size - 1 and name_of(event.value)[0] in (CODE, TABLE, ITEM)


def _outermost(spans: list[MarkdownSpan]) -> list[MarkdownSpan]:
    """Those that are in no other; they are given by their start."""
    found: list[MarkdownSpan] = []
    for span in spans:
        if not found or span.start >= found[-1].end:
            found.append(span)
    return found


def _span(event: Event) -> MarkdownSpan | None:
    name, value = name_of(event.value)
    if name not in (CODE, TABLE, HEADING, ITEM) and name not in INLINE:
        return None
    return MarkdownSpan(name, event.start, event.end, fenced=name == CODE and value != "Indented")
