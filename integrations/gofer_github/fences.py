"""Code fences that a text is cut inside of: closed where one part ends, opened again where the next begins."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_FENCE = 100
ROOM = 3 * LONGEST_FENCE
"""Characters that closing and opening again may add to a part."""

_OPENING = re.compile(r"^((?: {0,3}+> ?+)*+)( *+(?:(?:[-*+]|\d{1,9}[.)]) ++)*+)(`{3,}+|~{3,}+)(.*)$")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open one: what stands before it on its line, its own marker, and its language."""

    quote: str
    indent: int
    marker: str
    language: str

    @property
    def opening(self) -> str:
        return f"{self.quote}{self.marker}{self.language}\n"

    @property
    def closing(self) -> str:
        return f"{self.quote}{' ' * self.indent}{self.marker}"

    def ends_at(self, line: str) -> bool:
        """Whether this line is its end. A quotation's fence ends with the quotation."""
        return self.closed_by(line) or (">" in self.quote and not line.lstrip().startswith(">"))

    def closed_by(self, line: str) -> bool:
        rest = line[len(self.quote) :] if line.startswith(self.quote) else line.lstrip("> ")
        rest = rest.strip()
        return len(rest) >= len(self.marker) and not rest.strip(self.marker[0])

    def outdented(self, line: str) -> str:
        """A line of its code, for a part in which the list around it did not begin."""
        inner = line[len(self.quote) :] if line.startswith(self.quote) else line
        spaces = min(self.indent, len(inner) - len(inner.lstrip(" ")))
        return line[: len(line) - len(inner)] + inner[spaces:]


def open_at_end(text: str) -> Fence | None:
    """The fence that is still open where a text ends."""
    fence: Fence | None = None
    for line in text.removesuffix("\n").split("\n"):
        if fence is None:
            fence = _opened_by(line)
        elif fence.closed_by(line):
            fence = None
        elif fence.ends_at(line):
            fence = _opened_by(line)
    return fence


def closed(text: str) -> str:
    """The text, with nothing left open."""
    fence = open_at_end(text)
    return text if fence is None else f"{text.removesuffix(chr(10))}\n{fence.closing}"


def parted(text: str, cut: int) -> tuple[str, str]:
    """A text in two, each of them whole."""
    head, rest = text[:cut], text[cut:]
    fence = open_at_end(head)
    if fence is None:
        return head, rest
    lines = rest.removeprefix("\n").split("\n")
    size = next((at for at, line in enumerate(lines) if fence.ends_at(line)), len(lines))
    if size == 0:  # nothing of the code is left for the next part
        return closed(head), "\n".join(lines[1:] if fence.closed_by(lines[0]) else lines)
    # The end of the fence comes along; it stands where its code does.
    moved = [fence.outdented(line) for line in lines[: size + 1]]
    return closed(head), fence.opening + "\n".join([*moved, *lines[size + 1 :]])


def _opened_by(line: str) -> Fence | None:
    found = _OPENING.match(line)
    if (
        found is None
        or len(found.group(3)) > LONGEST_FENCE
        or len(found.group(1) + found.group(2)) > LONGEST_FENCE
    ):
        return None
    quote, before, marker, language = found.groups()
    if marker[0] == "`" and "`" in language:
        return None  # a code span
    return Fence(quote, len(before), marker, language.strip()[: LONGEST_FENCE // 2])
