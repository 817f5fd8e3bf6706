"""Breakers: when a model keeps failing, nobody calls it for a while, and then one probe does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

OPENS_AFTER = 5
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0


@dataclass(slots=True)
class Breaker:
    """The state of one provider and model, shared by all runs of the process."""

    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    pause: float = 0
    opened_at: float = 0
    probing: bool = False
    reason: str = ""

    def wait(self) -> float:
        """Seconds until a call may be made; 0 when it may now. When a pause ends, one caller gets to probe."""
        if not self.pause:
            return 0
        left = self.opened_at + self.pause - self.clock()
        if left > 0:
            return left
        if self.probing:
            return 1
        self.probing = True
        return 0

    def succeeded(self) -> None:
        self.failures, self.pause, self.probing, self.reason = 0, 0, False, ""

    def failed(self, reason: str, *, at_once: bool = False) -> bool:
        """Count a failure; True when this one opened the breaker."""
        self.failures += 1
        if not (at_once or self.probing or self.failures >= OPENS_AFTER):
            return False
        self.pause = min(LONGEST_PAUSE, self.pause * 2 if self.pause else FIRST_PAUSE)
        self.opened_at, self.probing, self.reason = self.clock(), False, reason
        return True

    def let_go(self) -> None:
        """The probe ended without a verdict, for instance because it was cancelled."""
        self.probing = False


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
        """Open ones, and the seconds until their probe."""
        now = self.clock()
        return {
            name: max(0.0, one.opened_at + one.pause - now) for name, one in self._all.items() if one.pause
        }
