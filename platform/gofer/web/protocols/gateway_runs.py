"""Runs of OpenClaw's gateway protocol: what a client said under a key, and how far it is, read from the store.

A run is one message of a client. Its id is the client's own idempotency key, under which intake keeps the message, so
that it means the same after a restart. The job that answers the message says how the run stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.jobs.children import FOR_ALL, FOR_ANY
from gofer.jobs.kinds import ANSWER, RECEPTION
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import (
    FINAL,
    IS_UNSENT,
    JobState,
    ReplyState,
    deliveries,
    jobs,
    messages,
    questions,
    replies,
)
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer.web.chat.rooms import Room
from gofer.web.protocols.reply_numbers import NumberedReply

IN_FLIGHT, OK, ERROR, ABORTED = "in_flight", "ok", "error", "aborted"
_ENDED = {JobState.DONE: OK, JobState.DEAD: ERROR, JobState.CANCELLED: ABORTED}
MAX_LOOKED_AT = 50
"""Of the platform's own answers, when the one to a command is looked for."""


@dataclass(frozen=True, slots=True)
class Run:
    """What somebody said under a key."""

    id: str
    conversation_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class RunState:
    """How a run stands."""

    status: str
    """in_flight, ok, error or aborted."""
    job_id: int | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether there is nothing more to come."""
        return self.status != IN_FLIGHT


def find_run(connection: Connection, connection_id: str, member_id: str, run_id: str) -> Run | None:
    """What a member said under a key, if anything."""
    query = select(deliveries.c.conversation_id, deliveries.c.message_seq).where(
        deliveries.c.connection_id == connection_id, deliveries.c.external_id == f"{member_id}:{run_id}"
    )
    row = connection.execute(query).first()
    if row is None or row.conversation_id is None or row.message_seq is None:
        return None
    return Run(run_id, row.conversation_id, row.message_seq)


def run_state(connection: Connection, run: Run) -> RunState:
    """How a run stands. One whose job was pruned long ago is over."""
    row = _job_of(connection, run)
    if row is None:
        return RunState(OK)
    times = {"job_id": row.id, "started_at": row.created_at, "ended_at": row.finished_at}
    unsent = select(func.count()).select_from(replies).where(replies.c.job_id == row.id, IS_UNSENT)
    if connection.execute(unsent).scalar_one():
        return RunState(IN_FLIGHT, **times)
    if row.state == JobState.WAITING and row.reason not in (FOR_ALL, FOR_ANY):
        # It has asked something: the answer is a message, and a run, of its own.
        later = _asked_after(connection, row.id, run)
        return RunState(OK if later else IN_FLIGHT, **times)
    return RunState(_ENDED.get(JobState(row.state), IN_FLIGHT), reason=row.reason, **times)


def _asked_after(connection: Connection, job_id: int, run: Run) -> bool:
    said = select(messages.c.created_at).where(
        messages.c.conversation_id == run.conversation_id, messages.c.seq == run.seq
    )
    query = select(questions.c.id).where(
        questions.c.job_id == job_id, questions.c.asked_at >= said.scalar_subquery()
    )
    return connection.execute(query.limit(1)).first() is not None


def _job_of(connection: Connection, run: Run) -> Any:
    """The job that answers a message: an agent's, or the platform's own for a command."""
    here = jobs.c.conversation_id == run.conversation_id
    covers = (jobs.c.covers_from < run.seq) & (jobs.c.covers_to.is_(None) | (jobs.c.covers_to >= run.seq))
    answered = (
        select(jobs).where(here, jobs.c.kind == RECEPTION).order_by(jobs.c.id.desc()).limit(MAX_LOOKED_AT)
    )
    for row in connection.execute(answered):
        if row.payload.get("seq") == run.seq:
            return row
    agents = select(jobs).where(here, jobs.c.kind == ANSWER, covers).order_by(jobs.c.id.desc()).limit(1)
    return connection.execute(agents).first()


def runs_of(connection: Connection, room: Room, job_ids: Iterable[int]) -> dict[int, list[str]]:
    """The runs that each of some jobs answers, in the order in which they were said."""
    wanted = list(job_ids)
    if not wanted:
        return {}
    rows = connection.execute(select(jobs).where(jobs.c.id.in_(wanted))).all()
    return {row.id: _runs(connection, room, row) for row in rows}


def _runs(connection: Connection, room: Room, job: Any, before: float = 0.0) -> list[str]:
    prefix = f"{room.ref.partition(':')[0]}:"
    query = select(messages.c.external_id, messages.c.created_at).where(
        messages.c.conversation_id == room.id, messages.c.connection_id == room.connection_id
    )
    if job.kind == RECEPTION:
        query = query.where(messages.c.seq == job.payload.get("seq", -1))
    elif job.kind == ANSWER:
        query = query.where(messages.c.seq > job.covers_from, messages.c.event == "message")
        if job.covers_to is not None:
            query = query.where(messages.c.seq <= job.covers_to)
    else:
        return []
    found = connection.execute(query.order_by(messages.c.seq).limit(100)).all()
    return [
        row.external_id.removeprefix(prefix)
        for row in found
        if row.external_id.startswith(prefix) and row.created_at >= before
    ]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Which runs a reply ends, and how."""

    runs: list[str]
    state: str
    """The state of the job."""
    reason: str
    agents: bool = False
    """Whether an agent answers, which may say a word in between."""


def answered_by(connection: Connection, room: Room, reply: NumberedReply) -> RunEnd:
    """The runs that a reply of a job ends. What was said before an earlier question was ended by that."""
    job = connection.execute(select(jobs).where(jobs.c.id == reply.job_id)).first()
    if job is None:
        return RunEnd([], JobState.DONE, "")
    earlier = select(func.max(questions.c.asked_at)).where(
        questions.c.job_id == reply.job_id,
        questions.c.id != reply.question,
        questions.c.asked_at < reply.at,
    )
    before = float(connection.execute(earlier).scalar() or 0.0)
    return RunEnd(_runs(connection, room, job, before), job.state, job.reason, job.kind == ANSWER)


def silent_ends(connection: Connection, room: Room, job_ids: Iterable[int]) -> list[RunEnd]:
    """Those of some jobs that have ended without a word, such as one that was stopped before it began."""
    wanted = list(job_ids)
    if not wanted:
        return []
    spoken = select(replies.c.id).where(replies.c.job_id == jobs.c.id).exists()
    query = select(jobs).where(jobs.c.id.in_(wanted), jobs.c.state.in_(FINAL), ~spoken)
    rows = connection.execute(query).all()
    return [RunEnd(_runs(connection, room, row), row.state, row.reason) for row in rows]


def answer_text(
    connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str, job_id: int
) -> str:
    """What a job has answered last."""
    query = (
        select(replies)
        .where(replies.c.job_id == job_id, replies.c.state == ReplyState.SENT, replies.c.sealed.is_not(None))
        .order_by(replies.c.id.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None:
        return ""
    key = conversation_key(connection, vault, conversation_id)
    return redactor.redact(unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part).get("text", ""))
