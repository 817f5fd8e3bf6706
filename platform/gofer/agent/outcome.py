"""How a run can end, as values. The platform turns them into the outcome of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gofer.tool import NewTask, Question


@dataclass(frozen=True, slots=True)
class Answered:
    """The agent answered; everything up to `included_to` is dealt with."""

    text: str
    included_to: int
    warning: str = ""
    """That a limit of the job is nearly reached, for whoever reads the answer."""
    narrowed: bool = False
    """Strangers' text was read, so what goes out must not act."""
    result: Mapping[str, Any] | None = None
    """What a tool ended the run with, if one did."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The agent asked a person. Keep the job waiting, and run it again when there is an answer or a message."""

    call_id: str
    question: Question
    included_to: int
    seen_to: int
    """The last message the run has seen; a later one may be the answer."""
    narrowed: bool = False


@dataclass(frozen=True, slots=True)
class Delegated:
    """The agent delegated tasks. Have them done, and run the job again when all are over."""

    call_id: str
    tasks: tuple[NewTask, ...]
    included_to: int
    trust: str
    narrowed: bool
    background: bool
    budget: int | None = None
    """Millionths of a dollar that the tasks may cost together; None for no bound."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A limit or a person ended the run. `text` is the reply: what there is, and why it ended."""

    code: str
    sentence: str
    text: str
    included_to: int
    narrowed: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The run could not go on now; nothing is lost. Run the job again, not before `retry_after` seconds."""

    reason: str
    sentence: str
    included_to: int
    retry_after: float | None = None
    waiting: bool = False
    """The provider or a breaker asked us to wait: it counts as no try."""


PAUSED = "paused"
"""The reason of a run that could not go on because somebody paused it."""

Outcome = Answered | Asked | Delegated | Stopped | Failed
