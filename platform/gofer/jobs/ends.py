"""How the ends of runs are written: the job, its attempt and the event, for many runs at once.

SQLite takes them row by row, for it has no way to make; for Postgres each statement is a way there and back, so it
gets all three, of all runs, in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Connection,
    Float,
    String,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    update,
)

from gofer.jobs.outcome import Dead, Draft, Outcome, Snooze, Wait
from gofer.jobs.queue import Claim
from gofer.store import events as log
from gofer.store import hot, json_text
from gofer.store.clock import now
from gofer.store.tables import FINAL, JobState, attempts, events, jobs

Apology = Callable[[Connection, Claim, str], tuple[Draft, ...]]
"""What to say in the chat about a job that ends without an answer. Asked under the lock, so that it speaks to
everything the job ends with."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that is over."""

    claim: Claim
    outcome: Outcome
    apology: Apology | None = None
    """Finds the words when the outcome brings none."""
    failures: int = 0
    """How often it could not be written."""


@dataclass(frozen=True, slots=True)
class End:
    """How one run ends, decided before anything is written."""

    ending: Ending
    claim: Claim
    outcome: Outcome
    state: JobState
    delay: float
    name: str
    reason: str
    covers_to: int | None
    event_seq: int

    @property
    def final(self) -> bool:
        return self.state in FINAL


def write_ends(connection: Connection, ends: Sequence[End], *, lost: bool) -> None:
    """Write the ends of jobs whose fence is checked and whose rows are held."""
    rows = [_row(end) for end in ends]
    noted = [_event(end, "attempt.lost" if lost else "attempt.finished") for end in ends]
    if connection.dialect.name == "postgresql":
        whole = [
            {**row, **event, "data": json_text.write(event["data"])}
            for row, event in zip(rows, noted, strict=True)
        ]
        hot.fetch(connection, _END_AT_ONCE, {name: [row[name] for row in whole] for name in _TYPES})
        return
    hot.many(connection, _END_JOB, rows)
    hot.many(connection, _END_ATTEMPT, rows)
    log.record_many(connection, noted)


def _row(end: End) -> dict[str, Any]:
    return {
        "job": end.claim.id,
        "held": end.claim.fence,
        "to_state": end.state,
        "in_seconds": end.delay,
        "used": end.claim.attempts - (1 if isinstance(end.outcome, Snooze | Wait) else 0),
        "why": end.reason,
        "is_final": end.final,
        "to_seq": end.covers_to,
        "numbered": end.event_seq,
        "how": end.name,
        "paid": end.outcome.cost,
    }


def _event(end: End, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "workspace_id": end.claim.workspace_id,
        "conversation_id": end.claim.conversation_id,
        "job_id": end.claim.id,
        "seq": end.event_seq,
        "fence": end.claim.fence,
        "data": {
            "outcome": end.name,
            "reason": end.reason,
            "state": end.state,
            "cost": end.outcome.cost,
            **_detail(end.outcome),
        },
    }


def _detail(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Snooze) and outcome.drafts:
        return {"told": True, "for": outcome.after}
    return {"detail": outcome.detail} if isinstance(outcome, Dead) and outcome.detail else {}


def _end_job(end: Mapping[str, Any]) -> Any:
    return (
        update(jobs)
        .where(jobs.c.id == end["job"])
        .values(
            state=end["to_state"],
            run_at=now() + end["in_seconds"],
            attempts=end["used"],
            reason=end["why"],
            owner=None,
            lease_until=None,
            event_seq=end["numbered"],
            covers_to=end["to_seq"],
            finished_at=case((end["is_final"], now()), else_=None),
        )
    )


def _end_attempt(end: Mapping[str, Any]) -> Any:
    return (
        update(attempts)
        .where(attempts.c.job_id == end["job"], attempts.c.fence == end["held"])
        .values(ended_at=now(), outcome=end["how"], reason=end["why"], cost=end["paid"])
    )


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("job", "held", "used", "to_seq", "numbered"), BigInteger()),
    **dict.fromkeys(("to_state", "why", "how", "kind", "workspace_id", "conversation_id", "data"), String()),
    **dict.fromkeys(("in_seconds", "paid"), Float()),
    "is_final": Boolean(),
}


def _end_at_once() -> Any:
    arrays = [bindparam(name, type_=ARRAY(type_)) for name, type_ in _TYPES.items()]
    given = func.unnest(*arrays).table_valued(*(column(name, type_) for name, type_ in _TYPES.items()))
    ended = select(given.render_derived(name="given")).cte("ended")
    noted = {
        "workspace_id": ended.c.workspace_id,
        "kind": ended.c.kind,
        "version": literal(1),
        "conversation_id": ended.c.conversation_id,
        "job_id": ended.c.job,
        "seq": ended.c.numbered,
        "fence": ended.c.held,
        "data": cast(ended.c.data, JSON),
        "tx": log.TX,
        "at": now(),
    }
    event = insert(events).from_select(list(noted), select(*noted.values()).select_from(ended))
    by_name = dict(ended.c)
    return select(func.count()).select_from(ended).add_cte(
        _end_job(by_name).cte("into_job"), _end_attempt(by_name).cte("into_attempt"), event.cte("into_event")
    )  # fmt: skip


_BOUND = {name: bindparam(name, type_=type_) for name, type_ in _TYPES.items()}
_END_JOB, _END_ATTEMPT = _end_job(_BOUND), _end_attempt(_BOUND)
_END_AT_ONCE = _end_at_once()
