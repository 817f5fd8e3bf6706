"""The outcomes of a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OUTAGE = "store.unavailable"
"""The reason of a try that ended because the store was away."""
STOPPED = "worker.stopped"
"""The reason of a try that was cut short because its process ended in good order."""

OWNERS = "role:owner"
"""A question for any owner, wherever they see it."""
MEMBERS = "role:member"
"""A question for any owner or member."""
ENDS_QUESTION = "ends_question"
"""The fact of a note that says who answered a question: with it the buttons go from the place it is sent to."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply to put into the ledger: already split into the parts its service can take."""

    binding_id: str
    parts: tuple[str, ...]
    kind: Literal["final", "error", "note"] = "final"
    reply_to: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: str = ""
    """Why the run ended before its work was done: `cancelled`, or the code of a limit. Empty for an answer."""
    signature: str = ""
    """What the first part begins with to say which agent speaks; the conversation does not keep it."""
    said: str | None = None
    """The model's own words, when the text has sentences of ours as well. None when all of an answer is the model's, or
    nothing of an error."""
    narrowed: bool = False
    """The run had read strangers' text: the conversation keeps its words with a stranger's trust."""


@dataclass(frozen=True, slots=True)
class Done:
    """The work is finished."""

    drafts: tuple[Draft, ...] = ()
    included_to: int | None = None
    """The last message the run has taken into account."""
    cost: float = 0
    reason: str = ""
    """Why it ended before its work was done, when it did and said so; empty when all is well."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed and is worth another try, which counts."""

    reason: str
    after: float | None = None
    """Seconds from now; None backs off by the number of tries."""
    drafts: tuple[Draft, ...] = ()
    """What to say if this was the last try."""
    included_to: int | None = None
    cost: float = 0


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now; the try does not count. `gofer.jobs.control.signal` ends it early."""

    after: float
    reason: str = "snoozed"
    cost: float = 0
    drafts: tuple[Draft, ...] = ()
    """What to say about the delay: said once, and again only when it takes longer than was said."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A person has to answer first. The job holds neither lease nor slot until then."""

    question: str
    call_id: str = ""
    """The tool call that asks."""
    asked_of: str = ""
    """Who may answer: an author's id, a role (`OWNERS`, `MEMBERS`), or empty for whoever is known there."""
    expires_after: float | None = None
    drafts: tuple[Draft, ...] = ()
    """The question as it is sent to the person."""
    cost: float = 0
    choices: tuple[str, ...] = ()
    """What may be answered by pressing a button, where there are buttons."""
    seen_to: int | None = None
    """The last message the run has seen. If a later one came, the run goes on at once and does not ask yet."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody asked to stop."""

    reason: str
    drafts: tuple[Draft, ...] = ()
    included_to: int | None = None
    cost: float = 0


@dataclass(frozen=True, slots=True)
class Dead:
    """It will never succeed."""

    reason: str
    drafts: tuple[Draft, ...] = ()
    included_to: int | None = None
    cost: float = 0
    detail: str = ""
    """What is wrong in full, for the operator: it goes into the event, never into the conversation."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that a run makes when it begins to wait. It belongs to the same conversation, agent and connection."""

    kind: str
    lane: str
    unique_key: str
    """The job is made once, however often the run asks for it."""
    pool: str = "worker"
    payload: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    delay: float = 0
    max_attempts: int = 5


@dataclass(frozen=True, slots=True)
class WaitForJobs:
    """Other jobs have to end first. The job holds neither lease nor slot until then, and messages do not wake it."""

    children: tuple[NewJob, ...] = ()
    """Made with the same commit."""
    waits_for: tuple[int, ...] = ()
    """Children made earlier that the run has seen unfinished. If they have ended, the run goes on at once."""
    any: bool = False
    """Whether it goes on when the next of them ends; otherwise when all have ended."""
    drafts: tuple[Draft, ...] = ()
    cost: float = 0


PAUSE_REQUESTED, PAUSED = "pause_requested", "paused"
"""The reason of a job that runs and was asked to pause, and of one that is paused."""
PAUSE_SECONDS = 10 * 365 * 86400.0
"""For how long a paused job sleeps, unless somebody resumes it."""

Outcome = Done | Retry | Snooze | Wait | WaitForJobs | Cancel | Dead
