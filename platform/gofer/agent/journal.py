"""The journal: a closed set of events, each with a version. A run's whole state is folded from them.

The platform stores them in its event log, under the job's fence. Nothing else about a run is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Kind:
    """What an event says, and what may be in it."""

    meaning: str
    words: frozenset[str] = frozenset()
    """Keys that hold what people, models or tools said. The store seals them; the rest are facts."""
    version: int = 1


KINDS: Mapping[str, Kind] = {
    "run.started": Kind(
        "A run began: who woke it, whether they wait for it, where its history begins and ends, and which text says "
        "who the agent is.",
        # A digest in the clear would let a reader of the store try what is known about somebody.
        frozenset({"woken_by", "asker", "digest"}),
    ),
    "turn.started": Kind(
        "A model call began: what is new to the model, up to which message, and what is reserved for it.",
        frozenset({"input", "asker", "pieces", "content"}),
    ),
    "turn.slow": Kind("The model has not said a word yet; whoever waits is told that it takes long."),
    "turn.failed": Kind(
        "A model call, or a try at one, failed; what it cost is charged.", frozenset({"detail"})
    ),
    "turn.finished": Kind(
        "The model answered; its words are kept as they came.", frozenset({"content", "malformed", "detail"})
    ),
    "tool.started": Kind("A tool is about to run."),
    "tool.finished": Kind(
        "A tool has run, or was refused; one that was refused has no start.",
        frozenset({"content", "images", "details", "more", "call_sig", "result_sig", "pieces"}),
    ),
    "tool.delayed": Kind(
        "A tool's service asks us to wait: the run does, and the call is made again.", frozenset({"detail"})
    ),
    "run.asked": Kind("The run waits for a person.", frozenset({"text", "choices"})),
    "run.delegated": Kind("The run waits for tasks that it delegated.", frozenset({"tasks"})),
    "context.cleared": Kind("The results of old tool calls went from the prompt.", frozenset({"evicted"})),
    "context.checkpoint": Kind(
        "What is old became a summary.",
        frozenset({"summary", "rules", "asked", "evicted", "covers", "spoken_rules"}),
    ),
    "run.warned": Kind("A budget is nearly used up.", frozenset({"sentence"})),
    "run.answered": Kind("The run ended with an answer.", frozenset({"text", "result"})),
    "run.stopped": Kind(
        "The run ended without one: a limit, a refusal, or somebody's word.", frozenset({"sentence", "text"})
    ),
}
"""The prompt's beginning changes at `context.cleared` and `context.checkpoint` alone."""


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One entry."""

    id: int
    kind: str
    data: dict[str, Any]
    parent_id: int | None = None
    version: int = 1


class Journal(Protocol):
    """Where a run's events are kept."""

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        """Store an event durably and return its id; raises `gofer.errors.Fenced` when another worker has the job."""
        ...

    async def load(self) -> Sequence[JournalEvent]:
        """All events of this job, in order."""
        ...
