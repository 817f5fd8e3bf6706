"""The journal: a closed set of events, each with a version, from which a run's whole state is folded.

The platform keeps them in its event log under the job's fence. Nothing else about a run is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be in an event."""

    version: int
    words: frozenset[str] = frozenset()
    """Keys that hold what people, models or tools said. The store seals them; the rest are facts."""


KINDS: Mapping[str, Kind] = {
    # The first event: who woke the run, whether they wait for it, and where its history begins and ends.
    "run.started": Kind(1, frozenset({"woken_by", "asker"})),
    # A model call begins: what is new to the model, up to which message, who asked last, and what is reserved.
    "turn.started": Kind(1, frozenset({"input", "asker"})),
    # A call, or a try at one, failed. What it cost is charged.
    "turn.failed": Kind(1, frozenset({"detail"})),
    # The model's answer, verbatim.
    "turn.finished": Kind(1, frozenset({"content", "malformed", "detail"})),
    # Written before a tool runs …
    "tool.started": Kind(1),
    # … and after. A call that is refused has only this one.
    "tool.finished": Kind(1, frozenset({"content", "images", "details", "more"})),
    # The run waits for a person.
    "run.asked": Kind(1, frozenset({"text", "choices"})),
    # Declared compaction points, the only places where the prompt's prefix changes.
    "context.cleared": Kind(1),
    "context.checkpoint": Kind(1, frozenset({"summary", "rules"})),
    # A budget is nearly used up.
    "run.warned": Kind(1, frozenset({"sentence"})),
    # The two ends.
    "run.answered": Kind(1, frozenset({"text"})),
    "run.stopped": Kind(1, frozenset({"sentence", "text"})),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One entry."""

    id: int
    kind: str
    data: dict[str, Any]
    parent_id: int | None = None
    version: int = 1


class Journal(Protocol):
    """Where a run's events are kept."""

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        """Store an event durably and return its id; raises `gofer.errors.Fenced` when the job is another's."""
        ...

    async def load(self) -> Sequence[Event]:
        """All events of this job, in order."""
        ...
