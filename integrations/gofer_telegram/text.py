"""Markdown as Telegram shows it: text with entities, in parts that break neither a fence nor an entity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

LIMIT = 4096
PART_LIMIT = 3900
"""Units per part; the rest is room for masks and for a fence that is closed and opened again."""
MOST_ENTITIES = 100
"""What one message may have; Telegram forgets those beyond."""
MOST_PARTS = 6
"""Parts beyond which the whole goes into a file."""
OPENING = 200
CAPTION = 900
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})(.*)")


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
    """What a message shows for some Markdown; plain text where nothing else makes sense."""
    from telegramify_markdown import convert

    clean = markdown.encode("utf-8", "replace").decode()
    text, entities = convert(clean, latex_escape=False, config=_config())
    kept = text.rstrip()
    if not kept.strip():
        return Rendered(clean.strip() or "(an empty answer)", [])
    return Rendered(kept, _trimmed(entities, kept))


def _trimmed(entities: list[Any], text: str) -> list[dict[str, Any]]:
    end = units(text)
    found = []
    for entity in entities:
        value = {name: item for name, item in entity.to_dict().items() if item is not None}
        value["length"] = min(value["length"], end - value["offset"])
        if value["length"] > 0:
            found.append(value)
    return found


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
    """What stands under a file that holds the whole of a text."""
    head = full[:CAPTION]
    return f"{head.rpartition(' ')[0] or head} … (all of it is in the file)"


def split(markdown: str) -> list[str]:
    """A reply in parts; a very long one as one part, which no message can hold: it becomes a file."""
    parts = list(_parts(markdown))
    return parts if 0 < len(parts) <= MOST_PARTS else [markdown]


def _parts(markdown: str) -> Iterator[str]:
    rest = markdown
    while not _fits(rest):
        head, rest = _cut(rest)
        if head.strip():
            yield head
    if rest.strip():
        yield rest


def _fits(markdown: str) -> bool:
    # What is far too long need not be rendered to be known as too long.
    if len(markdown) > 4 * PART_LIMIT or units(markdown) > PART_LIMIT:
        return False
    rendered = render(markdown)
    return units(rendered.text) <= PART_LIMIT and len(rendered.entities) <= MOST_ENTITIES


def _cut(markdown: str) -> tuple[str, str]:
    """The longest beginning that fits and ends well, and the rest."""
    window = _window(markdown)
    for position in _places(window):
        head, rest = _around(markdown, position)
        if _fits(head) and _whole(markdown[: len(window)], position):
            return head, rest
    return _around(markdown, len(window))


def _window(markdown: str) -> str:
    size = count = 0
    for character in markdown:
        count += 2 if ord(character) > 0xFFFF else 1
        if count > PART_LIMIT - 100:
            break
        size += 1
    while size > OPENING and len(render(markdown[:size]).entities) > MOST_ENTITIES:
        size = size * 9 // 10
    return markdown[:size]


def _places(window: str) -> Iterator[int]:
    """Where one may cut, best first: between paragraphs, between lines, between sentences, between words."""
    least = len(window) // 3
    for pattern, tries in ((r"\n\s*\n", 6), (r"\n", 12), (r"(?<=[.!?]) ", 6), (r"\s", 12)):
        ends = [found.end() for found in re.finditer(pattern, window) if found.end() > least]
        yield from reversed(ends[-tries:])


def _around(markdown: str, position: int) -> tuple[str, str]:
    """Both sides of a cut; a fence that is open there is closed before and opened again after."""
    head, rest = markdown[:position], markdown[position:]
    fence = open_fence(head)
    if fence is None:
        return head, rest
    mark, info = fence
    return f"{head.rstrip()}\n{mark}", f"{mark}{info}\n{rest}"


def open_fence(markdown: str) -> tuple[str, str] | None:
    """The fence that is still open at the end, with its language."""
    fence: tuple[str, str] | None = None
    for line in markdown.splitlines():
        found = _FENCE.fullmatch(line)
        if found is None:
            continue
        mark, info = found[1], found[2].strip()
        if fence is None:
            fence = (mark, info)
        elif mark[0] == fence[0][0] and len(mark) >= len(fence[0]) and not info:
            fence = None
    return fence


def _whole(window: str, position: int) -> bool:
    """Whether a cut leaves every mark whole: both sides show together what the whole shows."""
    head, rest = _around(window, position)
    together = render(head).text + render(rest).text if rest.strip() else render(head).text
    return _letters(together) == _letters(render(window).text)


def _letters(text: str) -> str:
    return "".join(text.split())
