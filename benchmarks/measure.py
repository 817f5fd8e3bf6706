"""Taking figures on a machine that others use too: several rounds in turn, the best of each contender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def percentile(values: Sequence[float], hundredths: float) -> float:
    """The value that this many hundredths stay below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * hundredths / 100))]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a queue did in one round."""

    drain: float
    """Jobs per second."""
    starts: list[float]
    """Milliseconds from the call that makes a job to its handler."""


@dataclass
class Rounds:
    """What each contender did, round by round. What disturbs a round only makes it slower, so the best counts."""

    drains: dict[str, list[float]] = field(default_factory=dict)
    starts: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, name: str, measured: Measured | None) -> None:
        """Note a round, unless the contender could not be had."""
        if measured is not None:
            self.drains.setdefault(name, []).append(measured.drain)
            self.starts.setdefault(name, []).append(measured.starts)

    def drain(self, name: str) -> float:
        """Jobs per second."""
        return max(self.drains[name])

    def start(self, name: str, hundredths: float) -> float:
        """Milliseconds."""
        return min(percentile(values, hundredths) for values in self.starts[name])
