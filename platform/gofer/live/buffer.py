"""What was said so far, and what of it somebody has not seen yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_TEXT, MOST_OUTPUT = 1_000_000, 16_000
"""Characters kept of a turn's words, and of what one call prints: the last ones, the rest is in the log later."""

Place = tuple[int, str]
"""A job, and its call; without a call, what the model itself says."""


@dataclass(slots=True)
class TurnText:
    """The words of one turn, or what one call has printed."""

    name: str
    """Of this beginning: another name is another beginning."""
    most: int
    text: str = ""
    start: int = 0
    """How many characters came before those that are kept."""
    open: bool = True
    """Whether they are in no log yet."""
    goes_on: bool = False
    """Whether the next turn takes up where this one was cut."""

    @property
    def end(self) -> int:
        """How many characters came."""
        return self.start + len(self.text)

    def add(self, text: str) -> None:
        """Go on."""
        whole = self.text + text
        self.start += max(len(whole) - self.most, 0)
        self.text = whole[-self.most :]

    def after(self, at: int) -> str:
        """What came after a place, as far as it is kept."""
        return self.text[max(at - self.start, 0) :]


def drop_closed(said: dict[Place, TurnText]) -> None:
    """Let go of words that are in the log."""
    for place in [place for place, words in said.items() if not words.open]:
        del said[place]


@dataclass(frozen=True, slots=True)
class Fresh:
    """What somebody has not seen: a beginning that replaces what came before, or more of what they know."""

    job_id: int
    call_id: str
    name: str
    at: int
    """How many characters come before it."""
    text: str
    whole: bool
    open: bool


class Reading:
    """How far somebody has read. Words that are in the log are finished, but never begun: the log has them."""

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[str, int, bool]] = {}

    def of(self, said: Mapping[Place, TurnText]) -> Iterator[Fresh]:
        """What is fresh, which is read thereby."""
        for place, words in said.items():
            name, at, was_open = self._seen.get(place, ("", 0, True))
            whole = name != words.name or at < words.start
            if whole and not words.open:
                continue
            at = words.start if whole else at
            text = words.after(at)
            if text or (whole and name) or was_open != words.open:
                self._seen[place] = (words.name, words.end, words.open)
                yield Fresh(*place, words.name, at, text, whole, words.open)

    def back_to(self, place: Place, name: str, at: int) -> None:
        """Read again from there on, or from the beginning if it is another one."""
        seen = self._seen.get(place)
        if seen is not None and seen[0] == name:
            self._seen[place] = (name, min(at, seen[1]), seen[2])
        else:
            self._seen.pop(place, None)

    def forget(self, job_id: int) -> None:
        """A job's words are to be read again from their beginning."""
        self._seen.pop((job_id, ""), None)
