"""The ledger's verbs: what is to be sent next, and what has become of it. All under the deliver job's fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from gofer.errors import NotFound
from gofer.jobs.fence import hold
from gofer.jobs.outcome import STOPPED
from gofer.jobs.queue import Claim
from gofer.store import events as log
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import (
    IS_UNSENT,
    ReplyState,
    attempts,
    bindings,
    jobs,
    questions,
    replies,
)
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

INTERRUPTED = "interrupted"
"""The reason of a try whose last request may have arrived although no answer came."""
IN_DOUBT = (INTERRUPTED, STOPPED)


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the ledger, opened."""

    id: int
    job_id: int
    kind: str
    part: int
    parts: int
    ref: str
    connection_id: str
    reply_to: str
    text: str
    facts: Mapping[str, Any]
    state: ReplyState
    external_id: str
    tries: int
    question: str
    choices: tuple[str, ...]
    confirm_in: float | None
    """Seconds until its final edit is to be repeated; None when it is not."""
    age: float = 0
    """Seconds since it was planned."""
    key: str = ""
    """Its id at the service."""
    unreadable: str = ""
    """Why its words cannot be opened, if they cannot: what was changed or purged behind our back is not sent."""
    lasting: str = ""
    """Stable id of the place when its name can change."""
    stopped_by: str = ""
    """Why the run was stopped before the work was done."""
    narrowed: bool = False
    """Whether its run had read strangers' text."""


def next_part(connection: Connection, vault: Vault, binding_id: str) -> Part | None:
    """The first part of a binding that is not yet out, or whose last edit wants repeating; None when all is done."""
    row = connection.execute(_UNSENT, {"binding": binding_id}).first()
    if row is None:
        row = connection.execute(_TO_CONFIRM, {"binding": binding_id}).first()
    if row is None:
        return None
    content, unreadable = _content(connection, vault, row)
    return Part(
        key=outside_key(row),
        unreadable=unreadable,
        id=row.id,
        job_id=row.job_id,
        kind=row.kind,
        part=row.part,
        parts=row.parts,
        ref=row.ref,
        connection_id=row.connection_id,
        reply_to=row.reply_to,
        text=content["text"],
        facts=content["facts"],
        state=ReplyState(row.state),
        external_id=row.external_id,
        tries=row.tries,
        question=content.get("question", ""),
        choices=() if _is_ended(connection, content) else tuple(content.get("choices", ())),
        lasting=row.lasting or "",
        stopped_by=content.get("stopped_by", ""),
        narrowed=content.get("narrowed", False),
        confirm_in=None if row.confirm_at is None else row.confirm_at - row.current,
        age=row.current - row.created_at,
    )


def outside_key(reply: Any) -> str:
    """The key under which a service finds this part: the same in every retry, and unique for ever. A restored backup
    gives jobs numbers that others had before, whose replies are still out there, so the number alone is not enough."""
    return f"gofer-{reply.job_id}-{reply.kind}-{reply.part}-{int(reply.created_at * 1000):x}"


def _content(connection: Connection, vault: Vault, row: Any) -> tuple[dict[str, Any], str]:
    try:
        key = conversation_key(connection, vault, row.conversation_id)
        return unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part), ""
    except (NotFound, Tampered) as error:
        return {"text": "", "facts": {}}, f"{error.code}: {error}"


_ROW = select(
    replies, bindings.c.ref, bindings.c.lasting, bindings.c.connection_id, now().label("current")
).join(bindings, bindings.c.id == replies.c.binding_id)
_UNSENT = _ROW.where(replies.c.binding_id == bindparam("binding"), IS_UNSENT).order_by(replies.c.id).limit(1)
_TO_CONFIRM = (
    _ROW.where(replies.c.binding_id == bindparam("binding"), replies.c.confirm_at.is_not(None))
    .order_by(replies.c.confirm_at)
    .limit(1)
)


def ended_questions(connection: Connection, vault: Vault, job_id: int) -> list[tuple[str, str, str]]:
    """Where a job's questions stand that are no longer open: connection, place and id there."""
    asked = _ROW.where(replies.c.job_id == job_id, replies.c.kind == "note", replies.c.external_id != "")
    return [
        (row.connection_id, row.ref, row.external_id)
        for row in connection.execute(asked).all()
        if _is_ended(connection, _content(connection, vault, row)[0])
    ]


def _is_ended(connection: Connection, content: Mapping[str, Any]) -> bool:
    """Whether the part offers choices for a question that is closed."""
    if not content.get("choices"):
        return False
    ended = (questions.c.id == content["question"]) & questions.c.answered_at.is_not(None)
    return connection.execute(select(questions.c.id).where(ended)).first() is not None


def begin(connection: Connection, claim: Claim, part: Part) -> None:
    """Note that sending begins: from here on the part may exist outside."""
    hold(connection, claim)
    connection.execute(update(replies).where(replies.c.id == part.id).values(tries=replies.c.tries + 1))


def placed(connection: Connection, claim: Claim, part: Part, external_id: str) -> None:
    """Note that the part exists outside under an id."""
    hold(connection, claim)
    _change(connection, claim, part, "reply.placed", state=ReplyState.PLACED, external_id=external_id)


def sent(connection: Connection, claim: Claim, part: Part, *, confirm_after: float | None) -> None:
    """Note that the part is complete; after a takeover, when to repeat its final edit."""
    hold(connection, claim)
    confirm_at = None if confirm_after is None else now() + confirm_after
    _change(
        connection, claim, part, "reply.sent", state=ReplyState.SENT, sent_at=now(), confirm_at=confirm_at
    )


def confirmed(connection: Connection, claim: Claim, part: Part) -> None:
    """Note that the final edit was repeated."""
    hold(connection, claim)
    connection.execute(update(replies).where(replies.c.id == part.id).values(confirm_at=None))


def vanished(connection: Connection, claim: Claim, part: Part) -> None:
    """Note that a placed part is no longer outside, so that it is placed again."""
    hold(connection, claim)
    _change(connection, claim, part, "reply.vanished", state=ReplyState.PLANNED, external_id="")


def failed(connection: Connection, claim: Claim, part: Part, reason: str) -> None:
    """Note that the part will not be sent, unless the deliver job that says so is redriven."""
    hold(connection, claim)
    _change(
        connection, claim, part, "reply.failed",
        state=ReplyState.FAILED, reason=reason[:500], confirm_at=None, failed_in=claim.id,
    )  # fmt: skip


def failures(connection: Connection, claim: Claim) -> list[Any]:
    """The parts that a deliver job gave up, in whichever of its tries."""
    return list(connection.execute(_FAILURES, {"job": claim.id}).all())


_planner = jobs.alias("planner")
_FAILURES = (
    select(replies.c.reason, replies.c.job_id, _planner.c.kind.label("planned_by"))
    .join(_planner, _planner.c.id == replies.c.job_id)
    .where(replies.c.failed_in == bindparam("job"), replies.c.state == ReplyState.FAILED)
    .order_by(replies.c.id)
)


def _change(connection: Connection, claim: Claim, part: Part, kind: str, **values: Any) -> None:
    connection.execute(update(replies).where(replies.c.id == part.id).values(**values))
    log.record(
        connection, kind, claim.workspace_id, conversation_id=claim.conversation_id, reply_id=part.id,
        data={"job": part.job_id, "part": part.part, "reason": values.get("reason", "")},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Before:
    """How earlier tries of a deliver job ended."""

    taken_over: bool
    """Whether a try ended in silence. A late edit of it may still arrive."""
    unsure_for: float | None
    """Seconds since a try ended without knowing whether its last request arrived; None when all of them knew."""


def earlier_tries(connection: Connection, claim: Claim) -> Before:
    """Read how earlier tries of this job ended."""
    rows = connection.execute(_EARLIER, {"job": claim.id, "current": claim.fence}).all()
    unsure = [float(row.ago or 0) for row in rows if row.outcome == "lost" or row.reason in IN_DOUBT]
    if all(row.outcome is None for row in rows):
        # What was begun was begun by a job before this one, which may have died of not knowing.
        unsure = [float(row.age) for row in rows]
    return Before(any(row.outcome == "lost" for row in rows), min(unsure, default=None))


_EARLIER = (
    select(
        attempts.c.outcome,
        attempts.c.reason,
        (now() - attempts.c.ended_at).label("ago"),
        (now() - jobs.c.created_at).label("age"),
    )
    .select_from(jobs)
    .outerjoin(attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.fence < bindparam("current")))
    .where(jobs.c.id == bindparam("job"))
)
