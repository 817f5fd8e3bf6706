"""What was refused, for the caller to show."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_KEPT = 256
_TEXT = 200


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request that was not let through.

    Its texts come from the sandbox and are made short and printable. `command` is the program that asked, as
    it was called; "" where it could not be found.
    """

    proxy: str
    method: str
    host: str
    port: int
    path: str
    reason: str
    command: str = ""
    when: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("method", "host", "path", "reason", "command"):
            object.__setattr__(self, name, printable(getattr(self, name)))


class Refusals:
    """The latest refusals and how many there were in all."""

    def __init__(self, report: Callable[[Refusal], None] | None) -> None:
        self._report = report
        self._latest: deque[Refusal] = deque(maxlen=_KEPT)
        self.count = 0

    def add(self, refusal: Refusal) -> None:
        """Keep it and tell the caller. Contract of the caller's function: it does not raise or block."""
        self._latest.append(refusal)
        self.count += 1
        if self._report is not None:
            self._report(refusal)

    def latest(self) -> tuple[Refusal, ...]:
        """Oldest first."""
        return tuple(self._latest)


def printable(text: str) -> str:
    """Short and on one line: what a sandbox sends may end in a log or a terminal."""
    safe = "".join(c if c.isprintable() else "?" for c in text[: _TEXT + 1])
    return safe if len(text) <= _TEXT else safe[:_TEXT] + "…"
