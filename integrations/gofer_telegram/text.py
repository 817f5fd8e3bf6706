"""Markdown as Telegram shows it: text with entities, in parts that break neither a fence nor an entity."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from gofer_telegram.cutting import Outline, is_too_much
from gofer_telegram.markdown import clean
from gofer_telegram.rendering import Entity, Renderer, units

LIMIT = 4096
PART_LIMIT = 3900
"""Units per part; the rest is room for masks and for a fence that is closed and opened again."""
MAX_ENTITIES = 100
"""What one message may have; Telegram forgets those beyond."""
MAX_WORDS = 6 * PART_LIMIT
"""Characters beyond which the whole goes into a file."""
MAX_PARTS = 12
"""The same for parts: words that six of them hold may have more entities than six may have."""
MAX_SOURCE = 4 * MAX_WORDS
"""Characters of Markdown beyond which nobody looks for places to cut: few of them would have to be shown."""
OPENING = 200
"""Characters that an opening holds at most."""
MIN_UNSPACED = 20
NO_OPENING = "One moment …"
"""Instead of the opening of an answer that is too short to have one."""
_WORD = re.compile(r"\S+")
CAPTION = 900


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text and entities, as the Bot API takes them."""

    text: str
    entities: list[Entity]

    @property
    def fits(self) -> bool:
        """Whether one message can hold it: all its words, and all its entities, for some of them are links."""
        return units(self.text) <= LIMIT and len(self.entities) <= MAX_ENTITIES


def render(markdown: str) -> Rendered:
    """What a message shows for some Markdown; plain text where nothing else makes sense, or would take its time."""
    source = clean(markdown)
    if not _is_too_much(source):
        return _rendered(source)
    # Its opening is all that is shown of it.
    return Rendered(_rendered(source[:CAPTION]).text + source[CAPTION:], [])


def _rendered(source: str) -> Rendered:
    text, entities = Renderer(source).render()
    if not text.strip():
        return Rendered(source.strip() or "(an empty answer)", [])
    lead = len(text) - len(text.lstrip())
    if any(one["type"] == "pre" and one["offset"] < lead for one in entities):
        lead = 0  # the indentation of its first line
    return Rendered(text[lead:].rstrip(), _trimmed(entities, text[lead:].rstrip(), lead))


def _trimmed(entities: list[Entity], text: str, lead: int) -> list[Entity]:
    """Those around something that can be seen, within the text that is left of it."""
    raw = text.encode("utf-16-le")  # Telegram's units are two bytes each
    found = []
    for one in entities:
        begin, end = max(0, one["offset"] - lead), min(_end(one) - lead, len(raw) // 2)
        if raw[2 * begin : 2 * max(begin, end)].decode("utf-16-le").strip():
            found.append({**one, "offset": begin, "length": end - begin})
    return _compatible(found)


def _compatible(entities: list[Entity]) -> list[Entity]:
    """Those that Telegram takes together; of two that say the same of the same words, the outer one."""
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
    """Whether Telegram takes one only without the other: nothing may be in code, and no quote in a quote."""
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
    """The first words of a text, at most half of them: what a crash may leave behind is never an answer."""
    head = full[: min(OPENING, len(full) // 2)]
    kept = list(_WORD.finditer(head))[: len(full.split()) // 2]
    if kept and kept[-1].end() == len(head) and not full[len(head)].isspace():
        kept.pop()  # a word that is cut in two
    if kept:
        return f"{head[: kept[-1].end()]} …"
    # Some languages put no spaces between words.
    return f"{head} …" if len(head) >= MIN_UNSPACED else NO_OPENING


def caption(full: str) -> str:
    """What stands under a file that holds the whole of a text; it may have 1024 units, as Telegram counts."""
    head = full[:CAPTION].encode("utf-16-le")[: 2 * CAPTION].decode("utf-16-le", "ignore")
    return f"{head.rpartition(' ')[0] or head} … (all of it is in the file)"


def split(markdown: str) -> list[str]:
    """A reply in parts; what cannot be had in a few is one part, which no message can hold: it becomes a file."""
    source = clean(markdown)
    if _is_too_much(source):
        return [markdown]
    parts = list(islice(_parts(source), MAX_PARTS + 1))
    return parts if 0 < len(parts) <= MAX_PARTS and all(map(_fits, parts)) else [markdown]


def _is_too_much(source: str) -> bool:
    return len(source) > MAX_SOURCE or is_too_much(source, MAX_WORDS)


def _parts(markdown: str) -> Iterator[str]:
    rest = markdown
    while not _fits(rest):
        window = _window(rest)
        outline = Outline(rest, len(window))
        position = _position(outline, window)
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


def _window(markdown: str) -> str:
    """As much as one part can hold at most."""
    size = count = 0
    for character in markdown:
        count += 2 if ord(character) > 0xFFFF else 1
        if count > PART_LIMIT - 100:
            break
        size += 1
    while size > OPENING and len(_rendered(markdown[:size]).entities) > MAX_ENTITIES:
        size = size * 9 // 10
    return markdown[:size]


def _position(outline: Outline, window: str) -> int:
    """Where to cut: as late as possible, at the best kind of place that there is."""
    for places in _places(window):
        good = [place for place in places if outline.may_cut(place)]
        fitting = bisect_left(good, True, key=lambda place: not _fits(outline.before(place)))
        if fitting:
            return good[fitting - 1]
    return len(window)


def _places(window: str) -> Iterator[list[int]]:
    """Where one may cut, best first: between paragraphs, between lines, between sentences, between words."""
    for least in (len(window) // 3, 0):
        for pattern in (r"\n\s*\n", r"\n", r"(?<=[.!?]) ", r"\s"):
            yield [found.end() for found in re.finditer(pattern, window) if found.end() > least]
