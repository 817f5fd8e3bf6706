"""The hops of Triggers as rows: made by the Trigger, carried out as orders by a host, ended by whoever is first.

A hop is open until one conditional update ends it: the agent's answer, its host's report, or its deadline. The Trigger
makes the next hop only after the last one has ended, so an open hop is always the newest, and what comes for another
one is too late. Whoever changes a hop holds the conversation's lock, or changes its row alone.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, exists, false, func, select, tuple_, update

from gofer.errors import Conflict, Malformed, NotFound
from gofer.jobs.control import cancel, note_event, signal
from gofer.jobs.fence import hold
from gofer.jobs.kinds import POST
from gofer.jobs.queue import Claim
from gofer.runtimes.chain import Step, Tried
from gofer.runtimes.records import CALLBACK
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import LIVE, JobState, agents, attempts, hops, in_state, jobs, runtimes

QUEUED, TAKEN, DELIVERED, ACKNOWLEDGED = "queued", "taken", "delivered", "acknowledged"
ANSWERED, READ, FAILED, CANCELLED = "answered", "read", "failed", "cancelled"
HANDED_OVER = "handed_over"
OPEN = (QUEUED, TAKEN, DELIVERED, ACKNOWLEDGED)
HANDED_OUT = (TAKEN, DELIVERED, ACKNOWLEDGED)
UNANSWERED = (DELIVERED, ACKNOWLEDGED)
JUST_NOW = 2.0
TAKE_WITHIN = 30.0
"""Seconds that a host has to take an order."""
LEASE = 120.0
"""Seconds that a host has for an order it took, until it reports or renews."""
MAX_HELD = 600.0
"""Seconds for which a host may put an order off."""
MAX_TAKEN, MAX_LEASES = 20, 2
"""Orders one look takes at most, and how often one order is handed out."""
QUESTION_LIFE = 3600.0
"""Seconds that people have to answer a host's question."""
_ORDER_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,4})", re.ASCII)
_REASON = re.compile(r"[a-z]+(\.[a-z_]+)*")
HOP = "trigger.hop"
LATE = "trigger.late"
SILENT, HOST_AWAY, HOST_LOST = "runtime.silent", "host.away", "host.lost"
TYPING, GONE = "deferred.typing", "runtime.gone"


_LIVES = exists().where(jobs.c.id == hops.c.job_id, in_state(*LIVE, JobState.BLOCKED))
"""The Trigger is not over: one that was given up may leave an open hop, which counts no more."""


def order_id(job_id: int, number: int) -> str:
    """What a host calls a hop."""
    return f"{job_id}-{number}"


def read_order_id(text: str) -> tuple[int, int]:
    """The job and the number of a hop; raises NotFound."""
    found = _ORDER_ID.fullmatch(text)
    if found is None:
        raise _no_order(text)
    return int(found[1]), int(found[2])


def _no_order(text: str) -> NotFound:
    return NotFound(f"There is no order {text[:40]!r} of yours.")


def hops_of(connection: Connection, job_id: int) -> list[Any]:
    """Every hop of a Trigger, in order."""
    query = select(hops, now().label("now")).where(hops.c.job_id == job_id).order_by(hops.c.number)
    return list(connection.execute(query).all())


def hops_of_drive(connection: Connection, job_id: int) -> list[Any]:
    """The hops since the Trigger was made or last redriven. Those before count as history: one that was left open when
    the Trigger was given up is ended here. Conversation locked."""
    ended = (attempts.c.job_id == job_id) & attempts.c.outcome.in_(("dead", "cancelled"))
    since = connection.execute(select(func.max(attempts.c.fence)).where(ended)).scalar() or 0
    rows = hops_of(connection, job_id)
    for row in rows:
        if row.fence <= since and row.state in OPEN:
            change(connection, row, CANCELLED, reason="trigger.redriven")
    return [row for row in rows if row.fence > since]


def tried(rows: list[Any]) -> list[Tried]:
    """The hops that failed, for the chain."""
    return [Tried(row.action, row.reason) for row in rows if row.state == FAILED]


def add_hop(
    connection: Connection,
    claim: Claim,
    step: Step,
    *,
    runtime: Any | None,
    covers_to: int,
    state: str = QUEUED,
    reason: str = "",
) -> int:
    """Make the next hop of a Trigger; returns its number. Conversation locked, fence held."""
    newest = connection.execute(select(func.max(hops.c.number)).where(hops.c.job_id == claim.id)).scalar()
    number = int(newest or 0) + 1
    values: dict[str, Any] = {
        "job_id": claim.id,
        "number": number,
        "conversation_id": claim.conversation_id,
        "agent_id": claim.agent_id,
        "runtime_id": runtime.id if runtime is not None else None,
        "host": runtime.host if runtime is not None else "",
        "action": step.action,
        "state": state,
        "reason": reason,
        "tries": 0,
        "covers_to": covers_to,
        "fence": claim.fence,
        "said": "",
        "deadline": now() + TAKE_WITHIN,
        "created_at": now(),
        "ended_at": None if state in OPEN else now(),
    }
    connection.execute(hops.insert().values(**values))
    name = runtime.name if runtime is not None else ""
    _note(connection, claim.id, number, step.action, state, why=step.why, runtime=name)
    return number


def _note(connection: Connection, job_id: int, number: int, action: str, state: str, **facts: str) -> None:
    """Tell of a hop in the log. The caller holds the conversation's lock."""
    data = {"hop": number, "action": action, "state": state, **{k: v for k, v in facts.items() if v}}
    note_event(connection, job_id, HOP, data)


def change(
    connection: Connection,
    row: Any,
    state: str,
    *,
    reason: str = "",
    was: tuple[str, ...] = OPEN,
    within: float | None = None,
    overdue: bool = False,
    **values: Any,
) -> bool:
    """Move an open hop on, if it still is in one of these states; returns whether it was. Conversation locked."""
    query = update(hops).where(
        hops.c.job_id == row.job_id, hops.c.number == row.number, hops.c.state.in_(was), _LIVES
    )
    if overdue:
        query = query.where(hops.c.deadline <= now())
    changed: dict[str, Any] = {"state": state, "reason": reason, **values}
    if within is not None:
        changed["deadline"] = now() + within
    if state not in OPEN:
        changed["ended_at"] = now()
    if connection.execute(query.values(**changed)).rowcount != 1:
        return False
    _note(connection, row.job_id, row.number, row.action, state, reason=reason)
    if state not in OPEN and row.state in HANDED_OUT:
        _withdraw_questions(connection, row)
    return True


def _withdraw_questions(connection: Connection, row: Any) -> None:
    """End what a host asks people for an agent whose hop is over: no answer would reach it. Conversation locked."""
    asking = select(jobs.c.id, jobs.c.payload).where(
        jobs.c.conversation_id == row.conversation_id,
        jobs.c.kind == POST,
        in_state(*LIVE),
        ~jobs.c.cancel_requested,
    )
    for job in connection.execute(asking).all():
        if job.payload.get("order") == order_id(row.job_id, row.number):
            cancel(connection, job.id, by="host")


def expire(connection: Connection, row: Any, ack_within: float) -> bool:
    """End a hop whose time is over, with why; returns whether it ended. Conversation locked, fence held.

    An order that a host took and did not report is handed out once more: the host knows what it had begun. A request
    that a worker began may have arrived, so it is not made again.
    """
    if row.state == TAKEN and row.host == CALLBACK:
        delivered(connection, row, "outcome.unknown", ack_within)
        return False
    if row.state == TAKEN and row.tries < MAX_LEASES:
        change(connection, row, QUEUED, was=(TAKEN,), overdue=True, within=TAKE_WITHIN)
        return False
    why = {QUEUED: HOST_LOST if row.tries else HOST_AWAY, TAKEN: HOST_LOST}.get(row.state, SILENT)
    return change(connection, row, FAILED, reason=why, was=(row.state,), overdue=True)


def locked(connection: Connection, claim: Claim) -> None:
    """Take the locks under which a Trigger changes its hops; raises Fenced."""
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)


def cancel_open(connection: Connection, claim: Claim) -> None:
    """End the open hop of a Trigger that is stopped: what its agent says from here on goes nowhere."""
    locked(connection, claim)
    for row in hops_of(connection, claim.id):
        if row.state in OPEN:
            change(connection, row, CANCELLED, reason="cancelled")


def take_orders(connection: Connection, member_id: str, host: str, *, fresh: bool = False) -> list[Any]:
    """Hand the queued orders of a member's runtimes on a host out, each under a lease. Returns hop and runtime rows.
    A host that has just started gets those that it had taken before, too: it knows which of them it had begun."""
    left = (hops.c.state == TAKEN) & (hops.c.tries < MAX_LEASES) if fresh else false()
    waiting = (hops.c.state == QUEUED) | left
    mine = (
        select(hops.c.job_id, hops.c.number, hops.c.runtime_id)
        .join(runtimes, runtimes.c.id == hops.c.runtime_id)
        .where(waiting, hops.c.deadline > now(), hops.c.host == host, _LIVES)
        .where(runtimes.c.member_id == member_id, runtimes.c.kind != CALLBACK)
        .order_by(hops.c.created_at, hops.c.job_id)
        .limit(MAX_TAKEN)
        .with_for_update(of=hops, skip_locked=True)
    )
    taken = []
    for row in connection.execute(mine).all():
        runtime = connection.execute(select(runtimes).where(runtimes.c.id == row.runtime_id)).one()
        if not row_macs.fits(connection, runtimes, runtime):
            continue
        here = (hops.c.job_id == row.job_id) & (hops.c.number == row.number) & waiting
        claimed = connection.execute(
            update(hops)
            .where(here)
            .values(state=TAKEN, tries=hops.c.tries + 1, deadline=now() + LEASE)
            .returning(*hops.c)
        ).one_or_none()
        if claimed is not None:
            taken.append((claimed, runtime))
    return taken


def over_orders(connection: Connection, member_id: str, given: list[str]) -> list[str]:
    """Those of a member's orders at which a host works in vain: their Triggers were stopped or have gone on. An order
    that was answered is none of them, its agent may end its turn."""
    ended = hops.c.state.in_((CANCELLED, FAILED)) | (hops.c.state.in_(OPEN) & ~_LIVES)
    query = (
        select(hops.c.job_id, hops.c.number)
        .join(runtimes, runtimes.c.id == hops.c.runtime_id)
        .where(runtimes.c.member_id == member_id, ended)
        .where(tuple_(hops.c.job_id, hops.c.number).in_([read_order_id(each) for each in given]))
    )
    return [order_id(row.job_id, row.number) for row in connection.execute(query).all()]


def force_deferred(connection: Connection, job_id: int) -> None:
    """Hand an order that its host puts off because somebody types out once more, now as a forced one. The host knows
    that it is the same. Conversation locked."""
    for row in hops_of(connection, job_id):
        if row.state == TAKEN and row.reason == TYPING:
            change(connection, row, QUEUED, was=(TAKEN,), within=TAKE_WITHIN)


def find_order(connection: Connection, given: str, member_id: str, *, lock: bool = True) -> tuple[Any, Any]:
    """The hop and the runtime of an order of a member's host, its conversation locked; raises NotFound."""
    job_id, number = read_order_id(given)
    here = (hops.c.job_id == job_id) & (hops.c.number == number)
    conversation_id = connection.execute(select(hops.c.conversation_id).where(here)).scalar()
    if conversation_id is None:
        raise _no_order(given)
    if lock:
        lock_conversation(connection, conversation_id)
    row = connection.execute(select(hops, now().label("now")).where(here)).one_or_none()
    if row is None:
        raise _no_order(given)
    runtime = connection.execute(select(runtimes).where(runtimes.c.id == row.runtime_id)).one_or_none()
    if runtime is None or runtime.member_id != member_id or not row_macs.fits(connection, runtimes, runtime):
        raise _no_order(given)
    return row, runtime


def report(
    connection: Connection,
    row: Any,
    runtime: Any,
    *,
    status: str,
    reason: str,
    session: str,
    ack_within: float,
) -> str:
    """Keep what a host says of an order; returns why it was ignored, empty when it counts. Conversation locked."""
    if session and session != runtime.session:
        connection.execute(update(runtimes).where(runtimes.c.id == runtime.id).values(session=session))
    if status == "deferred" and row.now - row.created_at > MAX_HELD:
        status, reason = "failed", HOST_LOST
    if status == "deferred":
        moved = change(connection, row, TAKEN, reason=reason, was=(TAKEN,), within=LEASE)
    elif status == "failed":
        moved = change(connection, row, FAILED, reason=reason or "runtime.failed", was=HANDED_OUT)
    else:
        unsure = reason or "outcome.unknown"
        moved = delivered(connection, row, unsure if status == "unknown" else reason, ack_within)
    if not moved:
        return late_reason(row)
    if status != "deferred":
        connection.execute(update(runtimes).where(runtimes.c.id == runtime.id).values(active_at=now()))
        signal(connection, row.job_id, by="host")
    return ""


def unanswered_orders(connection: Connection, runtime_id: str) -> list[str]:
    """The orders of a runtime that were delivered and not answered; not those of this moment, of which its host may
    not have known when it looked."""
    since = func.coalesce(hops.c.delivered_at, hops.c.created_at)
    query = select(hops.c.job_id, hops.c.number).where(
        hops.c.runtime_id == runtime_id, hops.c.state.in_(UNANSWERED), since < now() - JUST_NOW, _LIVES
    )
    return [order_id(row.job_id, row.number) for row in connection.execute(query).all()]


def end_unanswered(connection: Connection, order: str) -> None:
    """End a hop whose agent is gone. Anything it still says is late."""
    job_id, number = read_order_id(order)
    here = (hops.c.job_id == job_id) & (hops.c.number == number)
    lock_conversation(connection, connection.execute(select(hops.c.conversation_id).where(here)).scalar_one())
    row = connection.execute(select(hops).where(here)).one()
    if change(connection, row, FAILED, reason=GONE, was=UNANSWERED):
        signal(connection, job_id, by="host")


def delivered(connection: Connection, row: Any, reason: str, ack_within: float) -> bool:
    """Keep that a hop was delivered, or may have been: from here on its agent has to acknowledge."""
    return change(
        connection, row, DELIVERED, reason=reason, was=(TAKEN,), within=ack_within, delivered_at=now()
    )


def late_reason(row: Any) -> str:
    """Why what comes for a hop does not count."""
    if row.state in HANDED_OUT:
        return "trigger.over"
    return "order.not_taken" if row.state == QUEUED else f"hop.{row.state}"


def find_hop(connection: Connection, conversation_id: str, agent: str, job_id: int, number: int) -> Any:
    """A hop of an agent's Trigger in a conversation, which is locked; raises NotFound for any other."""
    lock_conversation(connection, conversation_id)
    query = (
        select(hops, jobs.c.participant_id, jobs.c.covers_from)
        .join(jobs, jobs.c.id == hops.c.job_id)
        .join(agents, agents.c.id == hops.c.agent_id)
        .where(hops.c.job_id == job_id, hops.c.number == number)
        .where(hops.c.conversation_id == conversation_id, agents.c.name == agent)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"There is no hop {number} of a trigger {job_id} for {agent[:40]!r} in this conversation. Use the numbers "
            "that came with the text."
        )
    return row


def check_no_hop_waits(connection: Connection, conversation_id: str, agent: str) -> None:
    """Raises Conflict when an agent says something without numbers while a Trigger waits for its answer: people would
    get a second one, from whoever stands in for it."""
    row = connection.execute(
        select(hops)
        .join(agents, agents.c.id == hops.c.agent_id)
        .where(hops.c.conversation_id == conversation_id, agents.c.name == agent, _LIVES)
        .where(hops.c.state.in_(UNANSWERED))
        .order_by(hops.c.job_id.desc(), hops.c.number.desc())
    ).first()
    if row is not None:
        raise Conflict(
            f"Trigger {row.job_id} waits for your answer here. Say it once more with trigger {row.job_id} and hop "
            f"{row.number}."
        )


def acknowledge(connection: Connection, row: Any, *, done: bool, answer_within: float) -> str:
    """Keep that an agent has read what a hop told it; `done` when it will say nothing. Returns why it does not count,
    if it does not. Conversation locked; raises Conflict for a hop that was never handed out."""
    if row.state == QUEUED:
        raise Conflict(
            f"Hop {row.number} of trigger {row.job_id} was not delivered yet, so nothing of it can be read."
        )
    if done:
        counts = change(connection, row, READ, was=HANDED_OUT)
    elif row.state == ACKNOWLEDGED:
        return ""  # said before
    else:
        counts = change(connection, row, ACKNOWLEDGED, was=(TAKEN, DELIVERED), within=answer_within)
    if counts:
        _active(connection, row)
        signal(connection, row.job_id, by="agent")
        return ""
    return "" if row.state == READ and done else late_reason(row)


def answered(connection: Connection, row: Any, said: str) -> bool:
    """End an open hop with its answer; returns False when it is too late. Conversation locked."""
    if not change(connection, row, ANSWERED, was=HANDED_OUT, said=said):
        return False
    _active(connection, row)
    signal(connection, row.job_id, by="agent")
    return True


def note_late(connection: Connection, row: Any, post: int) -> None:
    """Tell that words came for a hop that was over. Conversation locked."""
    note_event(connection, row.job_id, LATE, {"hop": row.number, "post": post, "state": row.state})


def _active(connection: Connection, row: Any) -> None:
    if row.runtime_id is not None:
        connection.execute(update(runtimes).where(runtimes.c.id == row.runtime_id).values(active_at=now()))


def check_reason(reason: str) -> None:
    """Raises Malformed for what is no reason code."""
    if reason and not _REASON.fullmatch(reason):
        raise Malformed(f"reason: {reason[:60]!r} is no code such as runtime.gone.")
