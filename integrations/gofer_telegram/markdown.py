"""Markdown as text with entities. Every word arrives, and so does every link's target: as a link where Telegram takes
one, else in brackets behind its words.

Markdown is CommonMark with tables, strikethrough and tasks, without HTML. HTML tags and empty task boxes are text here,
so they are escaped for the parser. Offsets count characters of the original text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MAX_ROUNDS = 8
"""Rounds of parsing and escaping tags. A tag that is left then is shown as it is."""
MAX_EVENTS = 30_000
"""Parser events in an answer; a table can have many in few characters, and one with more becomes a file."""
_LINE_START = re.compile(r"^[ \t>]*<", re.MULTILINE)
_EMPTY_TASK = re.compile(r"\[.\][ \t]*$", re.MULTILINE)
_REMOVED = dict.fromkeys(
    (code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"), None
)


class Event(NamedTuple):
    """A parser event and its position."""

    value: Any
    start: int
    end: int


def clean(text: str) -> str:
    """Text that can be sent: no lone surrogates, no control characters but tabs and line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.translate(_REMOVED).encode("utf-8", "replace").decode()


def parse(markdown: str) -> list[Event]:
    """The events of a text in order, and not many more than `MAX_EVENTS`."""
    inserted: list[int] = []
    """Positions of the original text with a backslash inserted before them."""
    for _ in range(MAX_ROUNDS):
        events, tags = _parse(markdown, inserted)
        if not tags - set(inserted):
            break
        inserted = sorted(tags.union(inserted))
    return events


def _parse(markdown: str, inserted: list[int]) -> tuple[list[Event], set[int]]:
    import pyromark

    options = pyromark.Options
    wanted = options.ENABLE_TABLES | options.ENABLE_STRIKETHROUGH | options.ENABLE_TASKLISTS
    bounds = [0, *inserted, len(markdown)]
    escaped = "\\".join(markdown[a:b] for a, b in pairwise(bounds))
    place = _places(escaped, inserted)
    events: list[Event] = []
    tags: set[int] = set()
    for value, at in islice(pyromark.events_with_range(escaped, options=wanted), MAX_EVENTS + 1):
        start, end = place(at["start"]), place(at["end"])
        events.append(Event(value, start, end))
        if isinstance(value, dict) and "InlineHtml" in value:
            tags.add(start)
        elif value == {"Start": "HtmlBlock"}:
            tags.update(found.end() - 1 for found in _LINE_START.finditer(markdown, start, end))
            tags.update([markdown.find("<", start, end)] if "<" in markdown[start:end] else [])
        elif isinstance(value, dict) and "TaskListMarker" in value and _EMPTY_TASK.match(markdown, start):
            # No task, since it has no words; the parser would take the next line for the beginning of a paragraph.
            tags.add(start)
    return events, tags


def _places(escaped: str, inserted: list[int]) -> Callable[[int], int]:
    """A function from the parser's offsets (UTF-8 bytes of the escaped text) to characters of the original text."""
    moved = [place + number for number, place in enumerate(inserted)]
    if escaped.isascii():
        return (lambda offset: offset - bisect_left(moved, offset)) if moved else int
    before = [0, *accumulate(byte & 0xC0 != 0x80 for byte in escaped.encode())]
    return lambda offset: before[offset] - bisect_left(moved, before[offset])


def name_of(event: Any) -> tuple[str, Any]:
    """The name and value of what starts with an event; empty for other events. Inline code is one event."""
    if not isinstance(event, dict) or "End" in event:
        return "", None
    began = event.get("Start", event)
    return next(iter(began.items())) if isinstance(began, dict) else (began, None)


def definitions(markdown: str) -> list[tuple[str, str]]:
    """The link definitions of a text: label and target."""
    import pyromark

    return [(label, found["dest"]) for label, found in pyromark.reference_definitions(markdown).items()]


BULLET, OPEN_TASK, DONE_TASK, RULE = "•", "☐", "☑", "—" * 8
LONG_QUOTE = 200
"""Units beyond which a quote is folded."""
_MARKS = {"Strong": "bold", "Emphasis": "italic", "Strikethrough": "strikethrough"}
_GAP = re.compile(r"\n[ \t>]*\n[ \t>]*\Z")
Entity = dict[str, Any]


def units(text: str) -> int:
    """Length as Telegram counts it: UTF-16 code units."""
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)


def is_linkable(url: str) -> bool:
    """Whether Telegram makes a link of it: it drops those to other schemes, and to hosts without a dot."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "tg":
        return True
    return parts.scheme in ("http", "https") and ("." in host.strip(".") or ":" in host) and " " not in url


@dataclass
class _Sink:
    """Text on its way out, with the entities in it."""

    pieces: list[str] = field(default_factory=list)
    size: int = 0
    """In Telegram's units."""
    entities: list[Entity] = field(default_factory=list)

    def write(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self.size += units(text)

    def line_ends(self) -> int:
        """How many line ends the text closes with."""
        count = 0
        for piece in reversed(self.pieces):
            bare = piece.rstrip("\n")
            count += len(piece) - len(bare)
            if bare:
                break
        return count

    def mark(self, kind: str, since: int, **more: Any) -> None:
        if self.size > since:
            self.entities.append({"type": kind, "offset": since, "length": self.size - since, **more})


@dataclass
class _Scope:
    """Something that is open."""

    kinds: tuple[str, ...]
    since: int
    """Units before it."""
    piece: int = 0
    """Pieces before it."""
    url: str = ""
    sink: _Sink | None = None


class EntityRenderer:
    """Walks the events of one text."""

    def __init__(self, markdown: str) -> None:
        self._source = markdown
        self._out = _Sink()
        self._cell: _Sink | None = None
        self._open: list[_Scope] = []
        self._lists: list[int | None] = []
        self._bullet_at = -1
        self._code: list[str] | None = None
        self._table: list[list[str]] = []
        self._cell_end = 0
        self._links = 0
        self._targets: set[str] = set()

    def render(self) -> tuple[str, list[Entity]]:
        """The text and its entities, as they are found."""
        for event in parse(self._source):
            self._take(event)
        if "]:" in self._source:
            self._unused_definitions()
        return "".join(self._out.pieces), self._out.entities

    @property
    def _sink(self) -> _Sink:
        return self._out if self._cell is None else self._cell

    def _take(self, event: Event) -> None:
        match event.value:
            case {"Start": tag}:
                self._start(tag, event)
            case {"End": tag}:
                self._end(tag if isinstance(tag, str) else next(iter(tag)), event)
            case {"Text": text} | {"InlineHtml": text} | {"Html": text}:
                self._text(text)
            case {"Code": text}:
                since = self._sink.size
                self._sink.write(text)
                self._sink.mark("code", since)
            case {"TaskListMarker": done}:
                self._task(done)
            case "SoftBreak" | "HardBreak":
                self._sink.write("\n" if self._cell is None else " ")
            case "Rule":
                self._block(event.start)
                self._out.write(RULE)

    def _text(self, text: str) -> None:
        if self._code is not None:
            self._code.append(text)
        else:
            self._sink.write(text)

    def _start(self, tag: Any, event: Event) -> None:
        name, about = name_of({"Start": tag})
        match name:
            case "Strong" | "Emphasis":
                self._push(_MARKS[name])
            case "Strikethrough" if self._source[event.start : event.start + 2] == "~~":
                self._push(_MARKS[name])
            case "Strikethrough":  # a single one means "about"
                self._sink.write("~")
                self._push()
            case "Link" | "Image":
                self._links += 1
                self._push(url=about["dest_url"])
            case "Paragraph" | "HtmlBlock":
                self._block(event.start)
            case "Heading":
                self._block(event.start)
                self._push(*(("underline", "bold") if about["level"] == "H1" else ("bold",)))
            case "BlockQuote":
                self._block(event.start)
                self._push("blockquote")
            case "CodeBlock":
                self._block(event.start)
                self._code = []
                language = about["Fenced"].split() if isinstance(about, dict) else []
                self._push("pre", url=language[0] if language else "")
            case "List":
                if not self._lists:
                    self._block(event.start)
                self._lists.append(about)
            case "Item":
                self._item()
            case "Table":
                self._block(event.start)
                self._table = []
            case "TableHead" | "TableRow":
                self._table.append([])
            case "TableCell":
                self._cell = _Sink()

    def _end(self, name: str, event: Event) -> None:
        match name:
            case "Strong" | "Emphasis" | "Heading":
                self._pop()
            case "Strikethrough":
                if not self._pop().kinds:
                    self._sink.write("~")
            case "Link" | "Image":
                self._link(self._open.pop())
            case "BlockQuote":
                scope = self._open.pop()
                length = self._out.size - scope.since
                self._out.mark("expandable_blockquote" if length > LONG_QUOTE else "blockquote", scope.since)
            case "CodeBlock":
                self._end_code(self._open.pop())
            case "List":
                self._lists.pop()
            case "TableCell":
                assert self._cell is not None
                self._table[-1].append("".join(self._cell.pieces))
                self._cell, self._cell_end = None, event.end
            case "TableHead" | "TableRow":
                # A row may have more cells than the head; the parser drops them, and we do not.
                rest = self._source[self._cell_end : event.end].strip(" \t\n|")
                self._table[-1] += [cell.strip() for cell in rest.split("|")] if rest else []
            case "Table":
                since = self._out.size
                self._out.write(_columns(self._table))
                self._out.mark("pre", since)

    def _push(self, *kinds: str, url: str = "") -> None:
        sink = self._sink
        self._open.append(_Scope(kinds, sink.size, len(sink.pieces), url, sink))

    def _pop(self) -> _Scope:
        scope = self._open.pop()
        for kind in scope.kinds:
            self._sink.mark(kind, scope.since)
        return scope

    def _link(self, scope: _Scope) -> None:
        """Where a link ends: mark its words, or say its target behind them."""
        self._links -= 1
        sink, url = self._sink, scope.url
        self._targets.add(url)
        words = "".join(sink.pieces[scope.piece :])
        if not url or words.strip() == url:
            return
        if not words.strip():
            sink.write(url)
        if is_linkable(url) and self._cell is None and not self._links:
            if words.strip():
                sink.mark("text_link", scope.since, url=url)
        elif words.strip():
            sink.write(f" ({url})")

    def _end_code(self, scope: _Scope) -> None:
        code = "".join(self._code or ()).rstrip("\n")
        self._code = None
        self._out.write(code)
        language = {"language": scope.url} if scope.url else {}
        self._out.mark("pre", scope.since, **language)

    def _block(self, start: int) -> None:
        """Begin another block: on a line of its own, after a blank one where the source has that."""
        if not self._out.size or self._bullet_at == self._out.size:
            return
        apart = not self._lists and _GAP.search(self._source, max(0, start - 200), start) is not None
        self._out.write("\n" * ((2 if apart else 1) - self._out.line_ends()))

    def _item(self) -> None:
        if self._out.size and self._bullet_at != self._out.size and not self._out.line_ends():
            self._out.write("\n")
        number = self._lists[-1]
        indent = "  " * (len(self._lists) - 1) if self._bullet_at != self._out.size else ""
        self._out.write(f"{indent}{BULLET if number is None else f'{number}.'} ")
        if number is not None:
            self._lists[-1] = number + 1
        self._bullet_at = self._out.size

    def _task(self, done: bool) -> None:
        mark = f"{DONE_TASK if done else OPEN_TASK} "
        if self._lists and self._lists[-1] is None and self._bullet_at == self._out.size:
            bullet = self._out.pieces.pop()
            self._out.size -= units(bullet)
            mark = bullet.removesuffix(f"{BULLET} ") + mark
        self._out.write(mark)
        self._bullet_at = self._out.size

    def _unused_definitions(self) -> None:
        """Links that are defined and used nowhere are the sources of what was said."""
        for label, target in definitions(self._source):
            if target not in self._targets:
                self._out.write(("\n" if self._out.size else "") + f"[{label}]: {target}")


def _columns(rows: list[list[str]]) -> str:
    """A table in columns of equal width."""
    count = max((len(row) for row in rows), default=0)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in full) for column in range(count)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in full
    ]
    if len(lines) > 1:
        lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)
