"""The end of a run: one transaction under the conversation's lock, so that no message falls between two jobs.

The reply goes to the ledger and `read_seq` moves on. If a message came meanwhile, the next job is made at once. Dead
and cancelled jobs move on too, with one honest sentence for the person who waits. Runs that end at the same moment
share one commit.
"""

from __future__ import annotations

import dataclasses
import random
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

from gofer.errors import Fenced
from gofer.jobs.children import (
    FOR_ALL,
    FOR_ANY,
    HAS_CHILDREN,
    SIGNALLED,
    children_of,
    close_tasks,
    ready_parents,
    submit_children,
)
from gofer.jobs.control import cancel
from gofer.jobs.ensure import CONFIRMING, ensure_answer, ensure_delivery
from gofer.jobs.kinds import DELIVER, TASK
from gofer.jobs.lanes import promote_behind
from gofer.jobs.outcome import (
    OUTAGE,
    PAUSE_REQUESTED,
    PAUSE_SECONDS,
    PAUSED,
    Cancel,
    Dead,
    Done,
    Draft,
    Outcome,
    Retry,
    Snooze,
    Wait,
    WaitForJobs,
)
from gofer.jobs.queue import Claim, lock_lane
from gofer.jobs.reply_planner import ask, is_open, plan_replies
from gofer.jobs.wait_reasons import NOTICED
from gofer.store import events as log
from gofer.store import fast_sql, json_text
from gofer.store.database import DIALECTS
from gofer.store.db_time import now
from gofer.store.tables import (
    ASIDE,
    DELAY,
    FINAL,
    IS_UNSENT,
    JobState,
    attempts,
    conversations,
    events,
    in_state,
    jobs,
    messages,
    participants,
    replies,
)
from gofer.vault.envelope import Vault

FIRST_BACKOFF, MAX_BACKOFF = 2.0, 600.0
MAX_OUTAGES, OUTAGE_WINDOW = 10, 3600.0
"""Outages of the store, within so many seconds, that cost a job no try."""


@dataclass(frozen=True, slots=True)
class FinishResult:
    """What the end of a run led to."""

    state: JobState
    woke: bool
    """Whether another job became ready, so that workers should look."""


def backoff(tries: int) -> float:
    """Seconds before the next try: exponential, capped, and random, so that retries do not all come at once."""
    return random.SystemRandom().uniform(0, min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(tries, 20)))


def finish_run(
    connection: Connection, vault: Vault, claim: Claim, outcome: Outcome, apology: Apology | None = None
) -> FinishResult:
    """End a run with its outcome; raises Fenced, changing nothing, when the job has another owner by now."""
    (finished,) = finish_runs(connection, vault, [FinishedRun(claim, outcome, apology)])
    if finished is None:
        raise Fenced
    return finished


def finish_runs(
    connection: Connection, vault: Vault, endings: Sequence[FinishedRun]
) -> list[FinishResult | None]:
    """End several runs in one transaction; None, changing nothing, for each whose job has another owner by now."""
    _lock(connection, [ending.claim for ending in endings])
    return _finish(connection, vault, endings)


def finish_lost_run(
    connection: Connection, vault: Vault, claim: Claim, apology: Apology
) -> FinishResult | None:
    """End a run whose worker went silent: back to ready, or dead when it has used up its tries.

    None when it is no longer lost: its worker renewed or ended it in the meantime.
    """
    _lock(connection, [claim])
    still = connection.execute(_STILL_LOST, {"job": claim.id, "held": claim.fence}).first()
    if still is None:
        return None
    outcome: Outcome = Cancel("cancelled") if claim.cancel_requested else Retry("worker.lost", after=0)
    (finished,) = _finish(connection, vault, [FinishedRun(claim, outcome, apology)], lost=True)
    return finished


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
    fast_sql.fetch(connection, _LOCK_ALL, {"conversations": sorted(conversation_ids)})
    for lane in sorted({claim.lane for claim in claims if claim.conversation_id is None}):
        lock_lane(connection, lane)


_LOCK_ALL = (
    select(conversations.c.id)
    .where(fast_sql.among("postgresql", conversations.c.id, "conversations"))
    .order_by(conversations.c.id)
    .with_for_update()
)


def _finish(
    connection: Connection, vault: Vault, endings: Sequence[FinishedRun], *, lost: bool = False
) -> list[FinishResult | None]:
    held = _held(connection, [ending.claim for ending in endings])
    ours = [ending for ending in endings if (ending.claim.id, ending.claim.fence) in held]
    ends = [_end(connection, ending, held[ending.claim.id, ending.claim.fence], lost=lost) for ending in ours]
    if ends:
        write_ends(connection, ends, lost=lost)
    woke = {end.claim.id for end in ends if end.state is JobState.READY}
    woke |= {end.claim.id for end in ends if _plan_replies(connection, vault, end)}
    over = [end for end in ends if end.final]
    woke |= _move_on(connection, over)
    woke |= {end.claim.id for end in over if _end_family(connection, end)}
    woke |= {end.claim.id for end in ends if isinstance(end.outcome, WaitForJobs)}
    finished = {id(end.ending): FinishResult(end.state, end.claim.id in woke) for end in ends}
    return [finished.get(id(ending)) for ending in endings]


def _held(connection: Connection, claims: Sequence[Claim]) -> dict[tuple[int, int], Any]:
    """The jobs that are still ours, locked, by id and fence: one process may end two tries at a job at once."""
    ids = sorted(claim.id for claim in claims)
    rows = fast_sql.fetch(connection, _RUNNING[connection.dialect.name], {"jobs": ids})
    found = {row.id: row for row in rows}
    return {
        (claim.id, claim.fence): found[claim.id]
        for claim in claims
        if claim.id in found and (found[claim.id].owner, found[claim.id].fence) == (claim.owner, claim.fence)
    }


_RUNNING = {
    dialect: select(
        *(jobs.c.id, jobs.c.owner, jobs.c.fence, jobs.c.event_seq, jobs.c.cancel_requested, jobs.c.covers_to),
        *(jobs.c.parent_id, jobs.c.reason, HAS_CHILDREN.label("has_children")),
    )
    .where(fast_sql.among(dialect, jobs.c.id, "jobs"), in_state(JobState.RUNNING))
    .order_by(jobs.c.id)
    .with_for_update()
    for dialect in DIALECTS
}


def _end(connection: Connection, ending: FinishedRun, job: Any, *, lost: bool) -> End:
    """Decide how a run ends: by its outcome, then by what happened while it ran. Only the children that it waits for
    are written here."""
    claim = ending.claim
    outcome = _decided(connection, claim, ending.outcome)
    state, delay, name = _next_state(claim, outcome)
    final, pauses = state in FINAL, False
    if not final:
        if _goes_on_at_once(connection, claim, outcome, job):
            state, delay = JobState.READY, 0
        pauses = state is not JobState.WAITING and job.reason == PAUSE_REQUESTED and not job.cancel_requested
        if pauses:
            state, delay = JobState.SCHEDULED, PAUSE_SECONDS
    return End(
        ending=ending,
        claim=claim,
        outcome=_without_old_news(connection, claim, outcome, state),
        state=state,
        delay=delay,
        name="lost" if lost and not final else name,
        reason=PAUSED if pauses else _reason(outcome),
        covers_to=_covers_to(connection, claim, outcome, job.covers_to) if final else job.covers_to,
        event_seq=job.event_seq + 1,
        parent_id=job.parent_id,
        has_children=job.has_children,
    )


def _decided(connection: Connection, claim: Claim, outcome: Outcome) -> Outcome:
    """The outcome that counts: with outages and tries counted, and no delay for a delivery that has more to send."""
    outcome = _exhausted(claim, _count_outage(connection, claim, outcome))
    return _without_delay(connection, claim, outcome)


def _goes_on_at_once(connection: Connection, claim: Claim, outcome: Outcome, job: Any) -> bool:
    """Whether a run that would sleep or wait becomes ready instead, because of what happened while it ran. The first
    rule that fits decides."""
    if job.cancel_requested:
        return True  # a worker ends it
    if _was_signalled(connection, claim, outcome):
        return True
    match outcome:
        case Snooze():
            return outcome.reason == PAUSED and job.reason != PAUSE_REQUESTED  # it was resumed meanwhile
        case Wait():
            return _has_new_message(connection, claim, outcome.seen_to, job.covers_to)
        case WaitForJobs():
            return not submit_children(connection, claim, outcome)
    return False


def _without_old_news(connection: Connection, claim: Claim, outcome: Outcome, state: JobState) -> Outcome:
    """A snooze says nothing when the run goes on at once, or when people know already that it takes so long."""
    if (
        isinstance(outcome, Snooze)
        and outcome.drafts
        and (state is JobState.READY or _delay_is_known(connection, claim, outcome.after))
    ):
        return dataclasses.replace(outcome, drafts=())
    return outcome


def _reason(outcome: Outcome) -> str:
    match outcome:
        case Wait():
            return ""
        case WaitForJobs(any=any_):
            return FOR_ANY if any_ else FOR_ALL
        case _:
            return outcome.reason


def _was_signalled(connection: Connection, claim: Claim, outcome: Outcome) -> bool:
    """Whether somebody signalled a run that pauses while it ran: what it has read may be old."""
    if not isinstance(outcome, Snooze | Wait | WaitForJobs):
        return False
    return connection.execute(_SIGNALLED, {"job": claim.id, "held": claim.fence}).first() is not None


_SIGNALLED = (
    select(events.c.id)
    .where(events.c.job_id == bindparam("job"), events.c.fence == bindparam("held"))
    .where(events.c.kind == SIGNALLED)
    .limit(1)
)


def _has_new_message(
    connection: Connection, claim: Claim, seen_to: int | None, covers_to: int | None
) -> bool:
    """Whether a message came after a waiting run last looked: nobody else would wake the run for it."""
    if seen_to is None:
        return False
    given = {"conversation": claim.conversation_id, "seen": seen_to, "most": covers_to}
    return connection.execute(_SAID_SINCE, given).first() is not None


_SAID_SINCE = (
    select(messages.c.seq)
    .where(messages.c.conversation_id == bindparam("conversation"), messages.c.seq > bindparam("seen"))
    .where(messages.c.seq <= func.coalesce(bindparam("most", type_=BigInteger), messages.c.seq))
    .where(messages.c.addressed, messages.c.sealed.is_not(None), messages.c.event.not_in(ASIDE))
    .limit(1)
)


def _delay_is_known(connection: Connection, claim: Claim, after: float) -> bool:
    """Whether people were told already that this job waits, and for at least as long."""
    said = connection.execute(_DELAY_NOTICE, {"job": claim.id}).first()
    if said is None:
        return False
    until = said.at + said.data["for"] if "for" in said.data else float("inf")
    return bool(said.now + after <= until + NOTICED)


_DELAY_NOTICE = (
    select(events.c.at, events.c.data, now().label("now"))
    .where(events.c.job_id == bindparam("job"), events.c.kind == "attempt.finished")
    .where(events.c.data["told"].as_boolean())
    .order_by(events.c.seq.desc())
    .limit(1)
)


def _count_outage(connection: Connection, claim: Claim, outcome: Outcome) -> Outcome:
    """An outage of the store costs no try, and the job goes on at once. When the store fails the same job again and
    again, the job waits longer each time, and in the end the tries count."""
    if not isinstance(outcome, Snooze) or outcome.reason != OUTAGE:
        return outcome
    before = int(connection.execute(_OUTAGES, {"job": claim.id}).scalar_one())
    if before >= MAX_OUTAGES:
        return Retry(OUTAGE, cost=outcome.cost)
    return dataclasses.replace(outcome, after=2.0**before - 1)


_OUTAGES = (
    select(func.count())
    .select_from(attempts)
    .where(attempts.c.job_id == bindparam("job"), attempts.c.reason == OUTAGE)
    .where(attempts.c.started_at > now() - OUTAGE_WINDOW)
)


def _exhausted(claim: Claim, outcome: Outcome) -> Outcome:
    """A retry becomes Dead when the last try is used up."""
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
        case Wait() | WaitForJobs():
            return JobState.WAITING, 0, "waiting"
        case Cancel():
            return JobState.CANCELLED, 0, "cancelled"
        case Dead():
            return JobState.DEAD, 0, "dead"


def _without_delay(connection: Connection, claim: Claim, outcome: Outcome) -> Outcome:
    """A delivery does not sleep until an old edit is repeated while a new reply waits."""
    if isinstance(outcome, Snooze) and outcome.reason == CONFIRMING and _unsent(connection, claim):
        return dataclasses.replace(outcome, after=0)
    return outcome


def _unsent(connection: Connection, claim: Claim) -> bool:
    binding_id = claim.payload.get("binding_id", "")
    return connection.execute(_ANY_UNSENT, {"binding": binding_id}).first() is not None


_ANY_UNSENT = select(replies.c.id).where(replies.c.binding_id == bindparam("binding"), IS_UNSENT).limit(1)


def _covers_to(connection: Connection, claim: Claim, outcome: Outcome, fixed: int | None) -> int | None:
    """How far a finished job has read: as the run says, else as was fixed when it was stopped or first ended, else
    everything."""
    if claim.participant_id is None:
        return fixed
    told = getattr(outcome, "included_to", None)
    if isinstance(outcome, Cancel) and fixed is not None:
        return max(fixed, told or 0)  # what was said before the stop is meant by it, read or not
    if told is not None or fixed is not None:
        return fixed if told is None else told
    query = select(conversations.c.last_seq).where(conversations.c.id == claim.conversation_id)
    return int(connection.execute(query).scalar_one())


def _plan_replies(connection: Connection, vault: Vault, end: End) -> bool:
    """Put what the end says into the ledger: the answer, the question, the apology, or that it takes longer."""
    claim, outcome = end.claim, end.outcome
    if isinstance(outcome, Snooze):
        return plan_replies(connection, vault, claim, outcome.drafts, kept_as=DELAY)
    if isinstance(outcome, WaitForJobs):
        return plan_replies(connection, vault, claim, outcome.drafts)
    if not (end.final or end.state is JobState.WAITING):
        return False
    drafts = outcome.drafts
    asked: dict[str, Any] = {}
    if isinstance(outcome, Wait):
        if is_open(connection, claim, outcome):
            return False  # it was asked before; somebody whose word is no answer woke the run
        asked = ask(connection, vault, claim, outcome)
    elif end.ending.apology is not None and not drafts and not isinstance(outcome, Done):
        drafts = end.ending.apology(connection, claim, end.reason)
    return plan_replies(connection, vault, claim, drafts, asked)


def _move_on(connection: Connection, ends: Sequence[End]) -> set[int]:
    """Free the lanes. The next blocked job takes each; without one, the participant's next job does, if it has unread
    messages. Returns the ended jobs that made room for another."""
    if not ends:
        return set()
    read = [
        {"who": end.claim.participant_id, "seq_": end.covers_to}
        for end in ends
        if end.claim.participant_id is not None and end.covers_to is not None
    ]
    fast_sql.many(connection, _READ_TO, read)
    lanes = promote_behind(connection, [end.claim.id for end in ends])
    moved = {end.claim.id for end in ends if end.claim.lane in lanes}
    return moved | {
        end.claim.id for end in ends if end.claim.id not in moved and _next(connection, end.claim)
    }


def _end_family(connection: Connection, end: End) -> bool:
    """Stop the children of a job that has ended, close its task, and ready the job that waited for it."""
    if end.has_children:
        for child in children_of(connection, end.claim.id):
            cancel(connection, child, by=f"job:{end.claim.id}")
    if end.claim.kind == TASK:
        close_tasks(connection, [(end.claim.id, end.state, end.reason)])
    readied = end.parent_id is not None and ready_parents(connection, {end.parent_id})
    return end.has_children or readied


def _next(connection: Connection, claim: Claim) -> bool:
    """Make the next job of a lane without blocked jobs: its participant has unread messages, or its ledger unsent
    replies."""
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


Apology = Callable[[Connection, Claim, str], tuple[Draft, ...]]
"""The words for the chat when a job ends without an answer. Called under the lock, so that it covers every message that
the job ends with."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that is over."""

    claim: Claim
    outcome: Outcome
    apology: Apology | None = None
    """Writes the words when the outcome brings none."""
    failures: int = 0
    """How often it could not be written."""


@dataclass(frozen=True, slots=True)
class End:
    """How one run ends, decided before anything is written."""

    ending: FinishedRun
    claim: Claim
    outcome: Outcome
    state: JobState
    delay: float
    name: str
    reason: str
    covers_to: int | None
    event_seq: int
    parent_id: int | None
    has_children: bool

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
        fast_sql.fetch(connection, _END_AT_ONCE, {name: [row[name] for row in whole] for name in _TYPES})
        return
    fast_sql.many(connection, _END_JOB, rows)
    fast_sql.many(connection, _END_ATTEMPT, rows)
    log.record_many(connection, noted)


def _row(end: End) -> dict[str, Any]:
    return {
        "job": end.claim.id,
        "held": end.claim.fence,
        "to_state": end.state,
        "in_seconds": end.delay,
        "used": end.claim.attempts - (1 if isinstance(end.outcome, Snooze | Wait | WaitForJobs) else 0),
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
