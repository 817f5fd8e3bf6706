"""The end of a run: one transaction under the conversation's lock, so that no message falls between two jobs.

The reply goes to the ledger, `read_seq` moves on, and if somebody wants the agent meanwhile the next job is made
there and then. Dead and cancelled jobs move on too, with one honest sentence for the person who waits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from gofer.errors import Fenced
from gofer.integration import Author, Incoming
from gofer.jobs.outcome import Cancel, Dead, Done, Draft, Outcome, Retry, Snooze, Wait
from gofer.jobs.queue import SERVICE, Claim, lock_lane, submit
from gofer.store import events as log
from gofer.store.clock import now
from gofer.store.content import seal_message
from gofer.store.ids import new_id
from gofer.store.sealing import conversation_key, seal
from gofer.store.tables import (
    LIVE,
    JobState,
    Trust,
    attempts,
    bindings,
    conversations,
    in_state,
    jobs,
    messages,
    participants,
    questions,
    replies,
)
from gofer.vault.envelope import DataKey, Vault

FIRST_BACKOFF, MOST_BACKOFF = 2.0, 600.0

CONFIRMING = "confirming"
"""The reason of a deliver job that waits to repeat a final edit after a takeover."""

DELIVER = "deliver"
"""The kind of job that sends what the ledger holds for one binding."""


@dataclass(frozen=True, slots=True)
class Concluded:
    """What the end of a run led to."""

    state: JobState
    woke: bool
    """Whether another job became ready, so that workers should look."""


def backoff(tries: int) -> float:
    """Seconds before the next try: exponential, capped, with full jitter so that retries do not march in step."""
    return random.uniform(0, min(MOST_BACKOFF, FIRST_BACKOFF * 2 ** min(tries, 20)))  # noqa: S311


def lock_conversation(connection: Connection, conversation_id: str) -> None:
    """Take the lock that intake and the end of a job share. First this, then everything is read."""
    connection.execute(_LOCK, {"conversation": conversation_id})


_LOCK = select(conversations.c.id).where(conversations.c.id == bindparam("conversation")).with_for_update()


def conclude(connection: Connection, vault: Vault, claim: Claim, outcome: Outcome) -> Concluded:
    """End a run with its outcome; raises Fenced, changing nothing, when the job has another owner by now."""
    _lock(connection, claim.conversation_id, claim.lane)
    return _settle(connection, vault, claim, outcome, owner=claim.owner)


def conclude_lost(connection: Connection, vault: Vault, claim: Claim, draft_for: Any) -> Concluded | None:
    """End a run whose worker went silent: back to ready, or dead when it has used up its tries.

    None when it is no longer lost: its worker renewed or ended it in the meantime.
    """
    _lock(connection, claim.conversation_id, claim.lane)
    still = connection.execute(_STILL_LOST, {"job": claim.id, "held": claim.fence}).first()
    if still is None:
        return None
    outcome: Outcome
    if claim.cancel_requested:
        outcome = Cancel("cancelled", drafts=draft_for(connection, claim, "cancelled"))
    elif claim.attempts >= claim.max_attempts:
        outcome = Dead("worker.lost", drafts=draft_for(connection, claim, "worker.lost"))
    else:
        outcome = Retry("worker.lost", after=0)
    return _settle(connection, vault, claim, outcome, owner=claim.owner, lost=True)


_STILL_LOST = (
    select(jobs.c.id)
    .where(jobs.c.id == bindparam("job"), jobs.c.fence == bindparam("held"), in_state(JobState.RUNNING))
    .where(jobs.c.lease_until < now())
    .with_for_update()
)


def _lock(connection: Connection, conversation_id: str | None, lane: str) -> None:
    if conversation_id is not None:
        lock_conversation(connection, conversation_id)
    else:
        lock_lane(connection, lane)


def _settle(
    connection: Connection, vault: Vault, claim: Claim, outcome: Outcome, *, owner: str, lost: bool = False
) -> Concluded:
    outcome = _exhausted(claim, outcome)
    state, delay, name = _next_state(claim, outcome)
    reason = "" if isinstance(outcome, Done | Wait) else outcome.reason
    final = state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED)
    included_to = _included_to(connection, claim, outcome) if final else None
    row = connection.execute(
        _END,
        {
            "job": claim.id,
            "holder": owner,
            "held": claim.fence,
            "to_state": state,
            "in_seconds": delay,
            "used": claim.attempts - (1 if isinstance(outcome, Snooze | Wait) else 0),
            "why": reason,
            "is_final": final,
            "to_seq": included_to if included_to is not None else claim.covers_to,
        },
    ).one_or_none()
    if row is None:
        raise Fenced
    ended = "lost" if lost and not final else name
    connection.execute(
        _END_ATTEMPT,
        {"job": claim.id, "held": claim.fence, "how": ended, "why": reason, "paid": outcome.cost},
    )
    log.record(
        connection,
        "attempt.lost" if lost else "attempt.finished",
        claim.workspace_id,
        conversation_id=claim.conversation_id,
        job_id=claim.id,
        seq=row.event_seq,
        fence=claim.fence,
        data={"outcome": ended, "reason": reason, "state": state, "cost": outcome.cost},
    )
    woke = state is JobState.READY
    asked = _ask(connection, vault, claim, outcome) if isinstance(outcome, Wait) else {}
    if final or isinstance(outcome, Wait):
        drafts = () if isinstance(outcome, Snooze) else outcome.drafts
        woke |= plan_replies(connection, vault, claim, drafts, asked)
    if final:
        woke |= _move_on(connection, claim, included_to)
    return Concluded(state, woke)


_END = (
    update(jobs)
    .where(
        jobs.c.id == bindparam("job"),
        jobs.c.owner == bindparam("holder"),
        jobs.c.fence == bindparam("held"),
        in_state(JobState.RUNNING),
    )
    .values(
        state=bindparam("to_state"),
        run_at=now() + bindparam("in_seconds"),
        attempts=bindparam("used"),
        reason=bindparam("why"),
        owner=None,
        lease_until=None,
        event_seq=jobs.c.event_seq + 1,
        covers_to=bindparam("to_seq"),
        finished_at=case((bindparam("is_final"), now()), else_=None),
    )
    .returning(jobs.c.event_seq)
)

_END_ATTEMPT = (
    update(attempts)
    .where(attempts.c.job_id == bindparam("job"), attempts.c.fence == bindparam("held"))
    .values(ended_at=now(), outcome=bindparam("how"), reason=bindparam("why"), cost=bindparam("paid"))
)


def _exhausted(claim: Claim, outcome: Outcome) -> Outcome:
    """A retry after the last try is a death."""
    if isinstance(outcome, Retry) and claim.attempts >= claim.max_attempts:
        return Dead(outcome.reason, outcome.drafts, outcome.included_to, outcome.cost)
    return outcome


def _next_state(claim: Claim, outcome: Outcome) -> tuple[JobState, float, str]:
    match outcome:
        case Done():
            return JobState.DONE, 0, "done"
        case Retry(after=after):
            delay = backoff(claim.attempts) if after is None else after
            return (JobState.SCHEDULED if delay > 0 else JobState.READY), delay, "retry"
        case Snooze(after=delay):
            return (JobState.SCHEDULED if delay > 0 else JobState.READY), delay, "snoozed"
        case Wait():
            return JobState.WAITING, 0, "waiting"
        case Cancel():
            return JobState.CANCELLED, 0, "cancelled"
        case Dead():
            return JobState.DEAD, 0, "dead"


def _included_to(connection: Connection, claim: Claim, outcome: Outcome) -> int | None:
    """How far a finished job has read: as it says, or everything there was when it was given up."""
    if claim.participant_id is None or isinstance(outcome, Retry | Snooze | Wait):
        return None
    if outcome.included_to is not None:
        return outcome.included_to
    if claim.covers_to is not None:
        return claim.covers_to
    query = select(conversations.c.last_seq).where(conversations.c.id == claim.conversation_id)
    return int(connection.execute(query).scalar_one())


def plan_replies(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    drafts: tuple[Draft, ...],
    asked: Mapping[str, Any] | None = None,
) -> bool:
    """Put every part into the ledger and see that somebody sends it. The caller holds the conversation's lock."""
    if not drafts or claim.conversation_id is None:
        return False
    key = conversation_key(connection, vault, claim.conversation_id)
    woke = False
    for draft in drafts:
        first = 1 + _last_part(connection, claim.id, draft.kind)
        total = first - 1 + len(draft.parts)
        for part, text in enumerate(draft.parts, first):
            content = {"text": text, "facts": dict(draft.facts), **((asked or {}) if part == total else {})}
            connection.execute(
                _PLAN,
                {
                    "workspace_id": claim.workspace_id,
                    "conversation_id": claim.conversation_id,
                    "binding_id": draft.binding_id,
                    "job_id": claim.id,
                    "kind": draft.kind,
                    "part": part,
                    "parts": total,
                    "reply_to": draft.reply_to,
                    "sealed": seal(key, content, "reply", claim.id, draft.kind, part),
                },
            )
        log.record(
            connection, "reply.planned", claim.workspace_id, conversation_id=claim.conversation_id,
            data={"job": claim.id, "kind": draft.kind, "parts": total},
        )  # fmt: skip
        _remember(connection, key, claim, draft)
        woke |= ensure_delivery(connection, claim.workspace_id, claim.conversation_id, draft.binding_id)
    return woke


def _remember(connection: Connection, key: DataKey, claim: Claim, draft: Draft) -> None:
    """What an agent says is part of the conversation too: kept as a message that wakes nobody."""
    if claim.agent_id is None or claim.conversation_id is None:
        return
    seq = int(connection.execute(_NEXT_SEQ, {"conversation": claim.conversation_id}).scalar_one())
    author = Author(agent_author(claim.agent_id), is_bot=True)
    message = Incoming(
        conversation="", author=author, text="".join(draft.parts), addressed=False, event="reply"
    )
    connection.execute(
        insert(messages).values(
            conversation_id=claim.conversation_id,
            seq=seq,
            author=author.id,
            addressed=False,
            trust=Trust.MEMBER,
            event=message.event,
            external_id="",
            sealed=seal_message(key, claim.conversation_id, seq, message),
            admitted_at=now(),
            created_at=now(),
        )
    )


_NEXT_SEQ = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"))
    .values(last_seq=conversations.c.last_seq + 1)
    .returning(conversations.c.last_seq)
)


def agent_author(agent_id: str) -> str:
    """How an agent is named as the author of a message."""
    return f"agent:{agent_id}"


def _last_part(connection: Connection, job_id: int, kind: str) -> int:
    """Notes and errors may be planned again in a job's life (redriven, dead again); a final reply only once."""
    if kind == "final":
        return 0
    query = select(func.max(replies.c.part)).where(replies.c.job_id == job_id, replies.c.kind == kind)
    return int(connection.execute(query).scalar() or 0)


_PLAN = insert(replies).values(
    state="planned", external_id="", tries=0, reason="", created_at=now(), sent_at=None, confirm_at=None
)


def ensure_delivery(connection: Connection, workspace_id: str, conversation_id: str, binding_id: str) -> bool:
    """See that a live job will send what the ledger holds for a binding. True when one was made."""
    lane = f"deliver:{binding_id}"
    if connection.execute(_LANE_LIVE, {"lane_": lane}).first() is not None:
        # One that only waits to repeat an old edit must not keep a new reply waiting.
        return connection.execute(_HURRY, {"lane_": lane}).rowcount > 0
    bound = connection.execute(_BOUND_TO, {"binding": binding_id}).one()
    if bound.conversation_id != conversation_id:
        # A word to an owner about somebody else's conversation: the lane belongs to the place it is said in.
        lock_conversation(connection, bound.conversation_id)
        if connection.execute(_LANE_LIVE, {"lane_": lane}).first() is not None:
            return False
    submit(
        connection,
        workspace_id=workspace_id,
        kind=DELIVER,
        lane=lane,
        pool=SERVICE,
        payload={"binding_id": binding_id},
        max_attempts=12,
        conversation_id=bound.conversation_id,
        connection_id=bound.connection_id,
    )
    return True


_LANE_LIVE = select(jobs.c.id).where(jobs.c.lane == bindparam("lane_"), in_state(*LIVE)).limit(1)
_HURRY = (
    update(jobs)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.SCHEDULED), jobs.c.reason == CONFIRMING)
    .values(state=JobState.READY)
)
_BOUND_TO = select(bindings.c.connection_id, bindings.c.conversation_id).where(
    bindings.c.id == bindparam("binding")
)


def _move_on(connection: Connection, claim: Claim, included_to: int | None) -> bool:
    """Free the lane: the next blocked job takes it, or the participant's next job if somebody wants it."""
    if claim.participant_id is not None and included_to is not None:
        connection.execute(_READ_TO, {"who": claim.participant_id, "seq_": included_to})
    if promote(connection, claim.lane):
        return True
    if claim.participant_id is None:
        return False
    return ensure_answer(connection, claim.participant_id)


_READ_TO = (
    update(participants)
    .where(participants.c.id == bindparam("who"), participants.c.read_seq < bindparam("seq_"))
    .values(read_seq=bindparam("seq_"))
)


def promote(connection: Connection, lane: str) -> bool:
    """Give a free lane to its first blocked job. The caller holds the lane's lock."""
    row = connection.execute(_PROMOTE, {"lane_": lane}).first()
    if row is None:
        return False
    log.record(
        connection, "job.promoted", row.workspace_id, job_id=row.id, seq=row.event_seq,
        conversation_id=row.conversation_id, data={"lane": lane},
    )  # fmt: skip
    return True


_FIRST_BLOCKED = (
    select(jobs.c.id)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.BLOCKED))
    .order_by(jobs.c.lane, jobs.c.id)
    .limit(1)
)
_PROMOTE = (
    update(jobs)
    .where(jobs.c.id == _FIRST_BLOCKED.scalar_subquery())
    .values(
        state=case((jobs.c.run_at > now(), JobState.SCHEDULED.value), else_=JobState.READY.value),
        event_seq=jobs.c.event_seq + 1,
    )
    .returning(jobs.c.id, jobs.c.workspace_id, jobs.c.conversation_id, jobs.c.event_seq)
)

ANSWER = "answer"
"""The kind of job in which an agent answers a conversation."""
RECEPTION = "reception"
"""The kind of job in which the platform itself answers: a command, a pressed button."""
APPROVAL = "approval"
"""The kind of job in which an owner is asked whether to let somebody in, or to listen somewhere."""


def ensure_answer(connection: Connection, participant_id: str, *, delay: float = 0) -> bool:
    """Make the participant's next job if it is wanted and has none. The caller holds the conversation's lock."""
    row = connection.execute(_WANTED, {"who": participant_id}).one_or_none()
    if row is None:
        return False
    if connection.execute(_LANE_LIVE, {"lane_": participant_id}).first() is not None:
        # Whoever writes while a question is open is heard: the run goes on and sees what was written.
        return connection.execute(_STOP_WAITING, {"lane_": participant_id}).rowcount > 0
    submit(
        connection,
        workspace_id=row.workspace_id,
        kind=ANSWER,
        lane=participant_id,
        priority=row.priority,
        delay=delay,
        conversation_id=row.conversation_id,
        participant_id=participant_id,
        agent_id=row.agent_id,
        connection_id=connection.execute(
            _WOKEN_BY, {"conversation": row.conversation_id, "seq_": row.wake_seq}
        ).scalar(),
        covers_from=row.read_seq,
    )
    return True


_STOP_WAITING = (
    update(jobs)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.WAITING))
    .values(state=JobState.READY, run_at=now())
)
_WANTED = (
    select(participants, conversations.c.workspace_id)
    .join(conversations, conversations.c.id == participants.c.conversation_id)
    .where(participants.c.id == bindparam("who"), participants.c.wake_seq > participants.c.read_seq)
)
_WOKEN_BY = select(messages.c.connection_id).where(
    messages.c.conversation_id == bindparam("conversation"), messages.c.seq == bindparam("seq_")
)


def _ask(connection: Connection, vault: Vault, claim: Claim, wait: Wait) -> dict[str, Any]:
    """Keep the question; returns what its last part carries out, so that a press can be told from another."""
    question_id = new_id("q")
    sealed = choices = None
    if claim.conversation_id is not None:
        key = conversation_key(connection, vault, claim.conversation_id)
        sealed = seal(key, wait.question, "question", question_id)
        choices = seal(key, list(wait.choices), "choices", question_id) if wait.choices else None
    expires = None if wait.expires_after is None else now() + wait.expires_after
    connection.execute(
        insert(questions).values(
            id=question_id,
            job_id=claim.id,
            call_id=wait.call_id,
            conversation_id=claim.conversation_id,
            asked_of=wait.asked_of,
            sealed=sealed,
            choices=choices,
            asked_at=now(),
            expires_at=expires,
        )
    )
    log.record(
        connection, "job.waiting", claim.workspace_id, conversation_id=claim.conversation_id,
        data={"job": claim.id, "question": question_id},
    )  # fmt: skip
    return {"question": question_id, "choices": list(wait.choices)}
