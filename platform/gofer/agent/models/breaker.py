"""Breakers: when a model keeps failing, whoever met that stops calling it for a while.

A failure may be the provider's fault or lie in what one conversation sends. So a breaker remembers who has failed: who
has not may try at once, and when that works the model is well again for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

OPENS_AFTER = 5
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
MAX_CALLERS = 10_000


@dataclass(slots=True)
class CallerHealth:
    """How one caller fared since the model last worked for it."""

    pauses: int = 0
    until: float = 0
    """Before this it does not call, while the breaker is open."""
    own_fault: bool = False
    """The model has worked for another since: what fails lies in what this one sends, and opens no breaker."""


@dataclass(slots=True)
class Breaker:
    """The state of one provider and model, shared by all runs of the process."""

    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    """In a row, of all callers together."""
    open: bool = False
    for_all: float = 0
    """Until then nobody calls: the key was refused, which is nobody's own fault."""
    reason: str = ""
    callers: dict[str, CallerHealth] = field(default_factory=dict)
    probes: set[str] = field(default_factory=set)
    """Who tries now, while it is open."""

    def wait(self, caller: str = "") -> float:
        """Seconds until this caller may call; 0 when it may now."""
        if not self.open:
            return 0
        now = self.clock()
        known = self.callers.get(caller)
        left = max(self.for_all, known.until if known else 0) - now
        if left > 0:
            return left
        # One probe of those who have failed and one of those who have not: the first cannot keep the second waiting.
        if any((probe in self.callers) == (caller in self.callers) for probe in self.probes):
            return 1
        self.probes.add(caller)
        return 0

    def succeeded(self, caller: str = "") -> None:
        self.failures, self.open, self.for_all, self.reason = 0, False, 0, ""
        self.probes.clear()
        self.callers.pop(caller, None)
        for other in self.callers.values():
            other.own_fault = True

    def failed(self, reason: str, caller: str = "", *, at_once: bool = False) -> bool:
        """Count a failure; True when this one opened the breaker."""
        known = self.callers.setdefault(caller, CallerHealth())
        if known.own_fault and not self.open and not at_once:
            return False
        self.failures += 1
        while len(self.callers) > MAX_CALLERS:
            del self.callers[next(iter(self.callers))]
        if not (at_once or self.open or self.failures >= OPENS_AFTER):
            return False
        opened, self.open, self.reason = not self.open, True, reason
        known.until = self.clock() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(known.pauses, 10))
        known.pauses += 1
        if at_once:
            self.for_all = known.until
        return opened

    def let_go(self, caller: str = "") -> None:
        """The probe ended, or shows that the model speaks: others need not wait for it."""
        self.probes.discard(caller)


@dataclass(slots=True)
class Breakers:
    """All breakers, by provider and model."""

    on_open: Callable[[str, str], None] = lambda name, reason: None
    """Told when one opens, to alert somebody."""
    clock: Callable[[], float] = time.monotonic
    _all: dict[str, Breaker] = field(default_factory=dict)

    def of(self, name: str) -> Breaker:
        return self._all.setdefault(name, Breaker(self.clock))

    def states(self) -> dict[str, float]:
        """Open ones, and the seconds until whoever has failed may try again."""
        now = self.clock()
        return {
            name: max(0.0, min((each.until for each in one.callers.values()), default=now) - now)
            for name, one in self._all.items()
            if one.open
        }
