"""Markdown as Telegram shows it: text with entities, in parts that break neither a fence nor an entity."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import Any

from gofer_telegram.cutting import Outline, is_too_much

LIMIT = 4096
PART_LIMIT = 3900
"""Units per part; the rest is room for masks and for a fence that is closed and opened again."""
MOST_ENTITIES = 100
"""What one message may have; Telegram forgets those beyond."""
MOST_PARTS = 6
"""Parts beyond which the whole goes into a file."""
MOST_SOURCE = 4 * MOST_PARTS * PART_LIMIT
"""Characters of Markdown beyond which nobody looks for places to cut: few of them would have to be shown."""
OPENING = 200
CAPTION = 900
_BULLET = re.compile(r"\s*(?:(?:•|☑|✅|\d+[.)]) *)*")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text and entities, as the Bot API takes them."""

    text: str
    entities: list[dict[str, Any]]

    @property
    def fits(self) -> bool:
        """Whether one message can hold it."""
        return units(self.text) <= LIMIT


def units(text: str) -> int:
    """Length as Telegram counts it: UTF-16 code units."""
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)


def render(markdown: str) -> Rendered:
    """What a message shows for some Markdown; plain text where nothing else makes sense, or would take its time."""
    clean = markdown.encode("utf-8", "replace").decode()
    if not _is_too_much(clean):
        return _rendered(clean)
    # Its opening is all that is shown of it.
    return Rendered(_rendered(clean[:CAPTION]).text + clean[CAPTION:], [])


def _rendered(clean: str) -> Rendered:
    from telegramify_markdown import convert

    text, entities = convert(clean, latex_escape=False, config=_config())
    kept = text.rstrip()
    if not kept.strip():
        return Rendered(clean.strip() or "(an empty answer)", [])
    return _code_on_its_own_lines(Rendered(kept, _trimmed(entities, kept)))


def _trimmed(entities: list[Any], text: str) -> list[dict[str, Any]]:
    end = units(text)
    found = []
    for entity in entities:
        value = {name: item for name, item in entity.to_dict().items() if item is not None}
        value["length"] = min(value["length"], end - value["offset"])
        if value["length"] > 0:
            found.append(value)
    return _compatible(found)


def _compatible(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that Telegram takes together; of two that say the same of the same words, the outer one."""
    entities.sort(key=lambda one: (one["offset"], -one["length"], not one["type"].endswith("blockquote")))
    kept: dict[int, dict[str, Any]] = {}
    around: dict[int, dict[str, Any]] = {}
    for number, one in enumerate(entities):
        around = {key: other for key, other in around.items() if _end(other) > one["offset"]}
        if not any(_excludes(other, one) for other in around.values()):
            for key in [key for key, other in around.items() if _excludes(one, other)]:
                del around[key], kept[key]
            kept[number] = around[number] = one
    return list(kept.values())


def _end(entity: dict[str, Any]) -> int:
    return int(entity["offset"] + entity["length"])


def _excludes(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
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


def _code_on_its_own_lines(rendered: Rendered) -> Rendered:
    """Code that stands in a list or a quote begins and ends with a line, as it does elsewhere."""
    text = rendered.text.encode("utf-16-le")  # Telegram's units are two bytes each
    breaks = [
        place
        for entity in rendered.entities
        if entity["type"] == "pre"
        for place in (entity["offset"], entity["offset"] + entity["length"])
        if 0 < place < len(text) // 2 and not _at_line(text, place, begins=place == entity["offset"])
    ]
    if not breaks:
        return rendered
    pieces = [text[2 * a : 2 * b] for a, b in pairwise([0, *breaks, len(text) // 2])]
    moved = [_behind(entity, breaks) for entity in rendered.entities]
    return Rendered("\n".encode("utf-16-le").join(pieces).decode("utf-16-le"), moved)


def _at_line(text: bytes, place: int, *, begins: bool) -> bool:
    """Whether code may begin or end here: at the edge of a line, or right behind an item's bullet."""
    if not begins:
        return text[2 * place : 2 * place + 2] == b"\n\0"
    line = text[: 2 * place].decode("utf-16-le").rpartition("\n")[2]
    return _BULLET.fullmatch(line) is not None


def _behind(entity: dict[str, Any], breaks: list[int]) -> dict[str, Any]:
    """An entity after line breaks were put in: what begins at one moves behind it, what ends at one stays."""
    begin, end = entity["offset"], entity["offset"] + entity["length"]
    shift = sum(place <= begin for place in breaks)
    within = sum(begin < place < end for place in breaks)
    return {**entity, "offset": begin + shift, "length": entity["length"] + within}


@cache
def _config() -> Any:
    """Telegramify's own, without its ornaments."""
    from telegramify_markdown import RenderConfig

    config = RenderConfig.isolated()
    symbols = config.markdown_symbol
    for level in range(1, 7):
        setattr(symbols, f"heading_level_{level}", "")
    symbols.image = symbols.link = ""
    symbols.unordered_list_item = "•"
    return config


def opening(full: str) -> str:
    """The first words of a text, never the whole of it: what a crash may leave behind is no second answer."""
    if len(full) <= OPENING:
        return f"{full} …"
    head = full[:OPENING]
    return f"{head.rpartition(' ')[0] or head} …"


def caption(full: str) -> str:
    """What stands under a file that holds the whole of a text; it may have 1024 units, as Telegram counts."""
    head = full[:CAPTION].encode("utf-16-le")[: 2 * CAPTION].decode("utf-16-le", "ignore")
    return f"{head.rpartition(' ')[0] or head} … (all of it is in the file)"


def split(markdown: str) -> list[str]:
    """A reply in parts; what cannot be had in a few is one part, which no message can hold: it becomes a file."""
    clean = markdown.encode("utf-8", "replace").decode()
    if _is_too_much(clean):
        return [markdown]
    parts = list(islice(_parts(clean), MOST_PARTS + 1))
    return parts if 0 < len(parts) <= MOST_PARTS and all(map(_fits, parts)) else [markdown]


def _is_too_much(clean: str) -> bool:
    return len(clean) > MOST_SOURCE or is_too_much(clean, MOST_PARTS * PART_LIMIT)


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
    return units(rendered.text) <= PART_LIMIT and len(rendered.entities) <= MOST_ENTITIES


def _window(markdown: str) -> str:
    """As much as one part can hold at most."""
    size = count = 0
    for character in markdown:
        count += 2 if ord(character) > 0xFFFF else 1
        if count > PART_LIMIT - 100:
            break
        size += 1
    while size > OPENING and len(_rendered(markdown[:size]).entities) > MOST_ENTITIES:
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
