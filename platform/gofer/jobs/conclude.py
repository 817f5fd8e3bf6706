"""The end of a run: one transaction under the conversation's lock, so that no message falls between two jobs.

The reply goes to the ledger, `read_seq` moves on, and if somebody wants the agent meanwhile the next job is made
there and then. Dead and cancelled jobs move on too, with one honest sentence for the person who waits. Runs that
end at the same moment are ended together: many jobs, one commit.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from gofer.errors import Fenced, NotFound
from gofer.integration import Author, Incoming
from gofer.jobs.ends import Apology, End, Ending, write_ends
from gofer.jobs.outcome import Cancel, Dead, Done, Draft, Outcome, Retry, Snooze, Wait
from gofer.jobs.promotion import promote_behind
from gofer.jobs.queue import SERVICE, Claim, lock_lane, submit
from gofer.store import events as log
from gofer.store import hot
from gofer.store.clock import now
from gofer.store.content import seal_message
from gofer.store.database import DIALECTS
from gofer.store.ids import new_id
from gofer.store.sealing import conversation_key, seal
from gofer.store.tables import (
    DELAY,
    FINAL,
    FORGOTTEN,
    IS_UNSENT,
    LIVE,
    JobState,
    Trust,
    bindings,
    conversations,
    events,
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
    return random.SystemRandom().uniform(0, min(MOST_BACKOFF, FIRST_BACKOFF * 2 ** min(tries, 20)))


def lock_conversation(connection: Connection, conversation_id: str) -> None:
    """Take the lock that intake and the end of a job share. First this, then everything is read."""
    hot.fetch(connection, _LOCK, {"conversation": conversation_id})


_LOCK = select(conversations.c.id).where(conversations.c.id == bindparam("conversation")).with_for_update()


def conclude(
    connection: Connection, vault: Vault, claim: Claim, outcome: Outcome, apology: Apology | None = None
) -> Concluded:
    """End a run with its outcome; raises Fenced, changing nothing, when the job has another owner by now."""
    (concluded,) = conclude_all(connection, vault, [Ending(claim, outcome, apology)])
    if concluded is None:
        raise Fenced
    return concluded


def conclude_all(connection: Connection, vault: Vault, endings: Sequence[Ending]) -> list[Concluded | None]:
    """End several runs in one transaction; None, changing nothing, for each whose job has another owner by now."""
    _lock(connection, [ending.claim for ending in endings])
    return _settle(connection, vault, endings)


def conclude_lost(connection: Connection, vault: Vault, claim: Claim, apology: Apology) -> Concluded | None:
    """End a run whose worker went silent: back to ready, or dead when it has used up its tries.

    None when it is no longer lost: its worker renewed or ended it in the meantime.
    """
    _lock(connection, [claim])
    still = connection.execute(_STILL_LOST, {"job": claim.id, "held": claim.fence}).first()
    if still is None:
        return None
    outcome: Outcome = Cancel("cancelled") if claim.cancel_requested else Retry("worker.lost", after=0)
    (concluded,) = _settle(connection, vault, [Ending(claim, outcome, apology)], lost=True)
    return concluded


_STILL_LOST = (
    select(jobs.c.id)
    .where(jobs.c.id == bindparam("job"), jobs.c.fence == bindparam("held"), in_state(JobState.RUNNING))
    .where(jobs.c.lease_until < now())
    .with_for_update()
)


def _lock(connection: Connection, claims: Sequence[Claim]) -> None:
    """Take every lock the ends need, always in the same order, so that two batches never wait for each other."""
    if connection.dialect.name != "postgresql":
        return
    conversation_ids = {claim.conversation_id for claim in claims if claim.conversation_id is not None}
    hot.fetch(connection, _LOCK_ALL, {"conversations": sorted(conversation_ids)})
    for lane in sorted({claim.lane for claim in claims if claim.conversation_id is None}):
        lock_lane(connection, lane)


_LOCK_ALL = (
    select(conversations.c.id)
    .where(hot.among("postgresql", conversations.c.id, "conversations"))
    .order_by(conversations.c.id)
    .with_for_update()
)


def _settle(
    connection: Connection, vault: Vault, endings: Sequence[Ending], *, lost: bool = False
) -> list[Concluded | None]:
    held = _held(connection, [ending.claim for ending in endings])
    ours = [ending for ending in endings if (ending.claim.id, ending.claim.fence) in held]
    ends = [_end(connection, ending, held[ending.claim.id, ending.claim.fence], lost=lost) for ending in ours]
    if ends:
        write_ends(connection, ends, lost=lost)
    woke = {end.claim.id for end in ends if end.state is JobState.READY}
    woke |= {end.claim.id for end in ends if _say(connection, vault, end)}
    woke |= _move_on(connection, [end for end in ends if end.final])
    concluded = {id(end.ending): Concluded(end.state, end.claim.id in woke) for end in ends}
    return [concluded.get(id(ending)) for ending in endings]


def _held(connection: Connection, claims: Sequence[Claim]) -> dict[tuple[int, int], Any]:
    """The jobs that are still ours, locked, by id and fence: one process may end two tries at a job at once."""
    ids = sorted(claim.id for claim in claims)
    rows = hot.fetch(connection, _RUNNING[connection.dialect.name], {"jobs": ids})
    found = {row.id: row for row in rows}
    return {
        (claim.id, claim.fence): found[claim.id]
        for claim in claims
        if claim.id in found and (found[claim.id].owner, found[claim.id].fence) == (claim.owner, claim.fence)
    }


_RUNNING = {
    dialect: select(
        jobs.c.id, jobs.c.owner, jobs.c.fence, jobs.c.event_seq, jobs.c.cancel_requested, jobs.c.covers_to
    )
    .where(hot.among(dialect, jobs.c.id, "jobs"), in_state(JobState.RUNNING))
    .order_by(jobs.c.id)
    .with_for_update()
    for dialect in DIALECTS
}


def _end(connection: Connection, ending: Ending, job: Any, *, lost: bool) -> End:
    claim = ending.claim
    outcome = _hurried(connection, claim, _exhausted(claim, ending.outcome))
    state, delay, name = _next_state(claim, outcome)
    final = state in FINAL
    if job.cancel_requested and not final:
        # A run that pauses while somebody asks to stop it goes back at once, for a worker to end it as asked.
        state, delay = JobState.READY, 0
    if (
        isinstance(outcome, Snooze)
        and outcome.drafts
        and (state is JobState.READY or _told(connection, claim))
    ):
        outcome = dataclasses.replace(outcome, drafts=())
    return End(
        ending=ending,
        claim=claim,
        outcome=outcome,
        state=state,
        delay=delay,
        name="lost" if lost and not final else name,
        reason="" if isinstance(outcome, Done | Wait) else outcome.reason,
        covers_to=_covers_to(connection, claim, outcome, job.covers_to) if final else job.covers_to,
        event_seq=job.event_seq + 1,
    )


def _told(connection: Connection, claim: Claim) -> bool:
    """Whether it was said before that this job has to wait."""
    return connection.execute(_TOLD, {"job": claim.id}).first() is not None


_TOLD = (
    select(events.c.id)
    .where(events.c.job_id == bindparam("job"), events.c.kind == "attempt.finished")
    .where(events.c.data["told"].as_boolean())
    .limit(1)
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


def _hurried(connection: Connection, claim: Claim, outcome: Outcome) -> Outcome:
    """A delivery must not sleep until an old edit is to be repeated while a new reply waits."""
    if isinstance(outcome, Snooze) and outcome.reason == CONFIRMING and _unsent(connection, claim):
        return dataclasses.replace(outcome, after=0)
    return outcome


def _unsent(connection: Connection, claim: Claim) -> bool:
    binding_id = claim.payload.get("binding_id", "")
    return connection.execute(_ANY_UNSENT, {"binding": binding_id}).first() is not None


_ANY_UNSENT = select(replies.c.id).where(replies.c.binding_id == bindparam("binding"), IS_UNSENT).limit(1)


def _covers_to(connection: Connection, claim: Claim, outcome: Outcome, fixed: int | None) -> int | None:
    """How far a finished job has read: as the run says; or as was fixed when it was stopped or first ended; or
    everything there is."""
    if claim.participant_id is None:
        return fixed
    told = getattr(outcome, "included_to", None)
    if isinstance(outcome, Cancel) and fixed is not None:
        return max(fixed, told or 0)  # what was said before the stop is meant by it, read or not
    if told is not None or fixed is not None:
        return fixed if told is None else told
    query = select(conversations.c.last_seq).where(conversations.c.id == claim.conversation_id)
    return int(connection.execute(query).scalar_one())


def _say(connection: Connection, vault: Vault, end: End) -> bool:
    """Put what is to be said into the ledger: the answer, the question, the apology, or that it takes longer."""
    claim, outcome = end.claim, end.outcome
    if isinstance(outcome, Snooze):
        return plan_replies(connection, vault, claim, outcome.drafts, kept_as=DELAY)
    if not (end.final or end.state is JobState.WAITING):
        return False
    drafts = outcome.drafts
    asked: dict[str, Any] = {}
    if isinstance(outcome, Wait):
        asked = _ask(connection, vault, claim, outcome)
    elif end.ending.apology is not None and not drafts and not isinstance(outcome, Done):
        drafts = end.ending.apology(connection, claim, end.reason)
    return plan_replies(connection, vault, claim, drafts, asked)


def plan_replies(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    drafts: tuple[Draft, ...],
    asked: Mapping[str, Any] | None = None,
    kept_as: str = "",
) -> bool:
    """Put every part into the ledger and see that somebody sends it. The caller holds the conversation's lock.

    `kept_as` is the event of the message that the conversation keeps of it, when its kind does not say it all.
    """
    if not drafts or claim.conversation_id is None:
        return False
    try:
        key = conversation_key(connection, vault, claim.conversation_id)
    except NotFound:
        return False  # purged while it ran: there is nobody left to tell
    woke = False
    for draft in drafts:
        first = 1 + _last_part(connection, claim.id, draft.kind)
        total = first - 1 + len(draft.parts)
        for part, text in enumerate(draft.parts, first):
            content = {"text": text, "facts": dict(draft.facts), **((asked or {}) if part == total else {})}
            hot.fetch(
                connection,
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
        _remember(connection, key, claim, draft, kept_as or ("note" if draft.kind == "note" else "reply"))
        woke |= ensure_delivery(connection, claim.workspace_id, claim.conversation_id, draft.binding_id)
    return woke


def _remember(connection: Connection, key: DataKey, claim: Claim, draft: Draft, event: str) -> None:
    """What an agent says is part of the conversation too: kept as a message that wakes nobody."""
    if claim.agent_id is None or claim.conversation_id is None:
        return
    seq = int(connection.execute(_NEXT_SEQ, {"conversation": claim.conversation_id}).scalar_one())
    author = Author(agent_author(claim.agent_id), is_bot=True)
    if hot.first(connection, _FORGOTTEN, {"job": claim.id}) is not None:
        event = FORGOTTEN
    message = Incoming(
        conversation="", author=author, text="".join(draft.parts), addressed=False, event=event
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


# Said after a new epoch began, but about what was before it.
_FORGOTTEN = (
    select(jobs.c.id)
    .join(participants, participants.c.id == jobs.c.participant_id)
    .where(jobs.c.id == bindparam("job"), jobs.c.covers_to <= participants.c.epoch_seq)
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
    if hot.first(connection, _LANE_LIVE, {"lane_": lane}) is not None:
        # One that only waits to repeat an old edit must not keep a new reply waiting.
        return bool(hot.fetch(connection, _HURRY, {"lane_": lane}))
    bound = hot.first(connection, _BOUND_TO, {"binding": binding_id})
    if bound.conversation_id != conversation_id:
        # A word to an owner about somebody else's conversation: the lane belongs to the place it is said in.
        lock_conversation(connection, bound.conversation_id)
        if hot.first(connection, _LANE_LIVE, {"lane_": lane}) is not None:
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
    .returning(jobs.c.id)
)
_BOUND_TO = select(bindings.c.connection_id, bindings.c.conversation_id).where(
    bindings.c.id == bindparam("binding")
)


def _move_on(connection: Connection, ends: Sequence[End]) -> set[int]:
    """Free the lanes: the next blocked job takes each, or the participant's next job if somebody wants it.

    Returns the ended jobs that made room for another.
    """
    if not ends:
        return set()
    read = [
        {"who": end.claim.participant_id, "seq_": end.covers_to}
        for end in ends
        if end.claim.participant_id is not None and end.covers_to is not None
    ]
    hot.many(connection, _READ_TO, read)
    lanes = promote_behind(connection, [end.claim.id for end in ends])
    moved = {end.claim.id for end in ends if end.claim.lane in lanes}
    return moved | {
        end.claim.id for end in ends if end.claim.id not in moved and _next(connection, end.claim)
    }


def _next(connection: Connection, claim: Claim) -> bool:
    """Make the job that follows in a lane nobody waits for: its participant is wanted, or its ledger not empty."""
    if claim.participant_id is not None:
        return ensure_answer(connection, claim.participant_id)
    if claim.kind == DELIVER and claim.conversation_id is not None and _unsent(connection, claim):
        # Planned after the delivery's last look.
        binding_id = str(claim.payload["binding_id"])
        return ensure_delivery(connection, claim.workspace_id, claim.conversation_id, binding_id)
    return False


_READ_TO = (
    update(participants)
    .where(participants.c.id == bindparam("who"), participants.c.read_seq < bindparam("seq_"))
    .values(read_seq=bindparam("seq_"))
)


ANSWER = "answer"
"""The kind of job in which an agent answers a conversation."""
RECEPTION = "reception"
"""The kind of job in which the platform itself answers: a command, a pressed button."""
APPROVAL = "approval"
"""The kind of job in which an owner is asked whether to let somebody in, or to listen somewhere."""


def ensure_answer(connection: Connection, participant_id: str, *, delay: float = 0) -> bool:
    """Make the participant's next job if it is wanted and has none. The caller holds the conversation's lock."""
    row = hot.first(connection, _WANTED, {"who": participant_id})
    if row is None:
        return False
    woken_by = {"conversation": row.conversation_id, "seq_": row.wake_seq}
    via = hot.scalar(connection, _WOKEN_BY, woken_by)
    return ensure_job(connection, row, row.workspace_id, live=row.live, via=via, delay=delay)


def ensure_job(
    connection: Connection,
    participant: Any,
    workspace_id: str,
    *,
    live: str | None,
    via: str | None,
    delay: float = 0,
    patient: bool = False,
) -> bool:
    """Make the job of a participant that is wanted unless it has one; whether workers should look.

    `live` is the state of the one it has, read under the conversation's lock.
    """
    if live is not None:
        # Whoever writes while a question is open is heard: the run goes on and sees what was written.
        waits = live == JobState.WAITING and not patient
        return waits and bool(hot.fetch(connection, _STOP_WAITING, {"lane_": participant.id}))
    submit(
        connection,
        workspace_id=workspace_id,
        kind=ANSWER,
        lane=participant.id,
        priority=participant.priority,
        delay=delay,
        conversation_id=participant.conversation_id,
        participant_id=participant.id,
        agent_id=participant.agent_id,
        connection_id=via,
        covers_from=participant.read_seq,
    )
    return True


def live_state(lane: Any) -> Any:
    """The state of the live job in a lane, if there is one, as a column."""
    return select(jobs.c.state).where(jobs.c.lane == lane, in_state(*LIVE)).scalar_subquery()


_STOP_WAITING = (
    update(jobs)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.WAITING))
    .values(state=JobState.READY, run_at=now())
    .returning(jobs.c.id)
)
_WANTED = (
    select(participants, conversations.c.workspace_id, live_state(participants.c.id).label("live"))
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
