"""Maintenance: rescues jobs of silent workers, repairs lanes, and prunes what is old.

There is no leader: every worker runs these in small batches, and the locks keep them from doing a thing twice.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, literal, select, text, update

from gofer.jobs.children import close_orphans, forsaken, ready_parents
from gofer.jobs.ensure import asleep_when_closed, ensure_answer, ensure_delivery
from gofer.jobs.finish import Apology, finish_lost_run
from gofer.jobs.lanes import promote
from gofer.jobs.queue import CLAIM_COLUMNS, Claim, claim_of, lock_lane
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    ENDED_BADLY,
    IS_UNSENT,
    LIVE,
    SUPERVISED,
    JobState,
    bindings,
    conversations,
    deliveries,
    events,
    in_state,
    jobs,
    participants,
    replies,
    workers,
)
from gofer.vault.envelope import Vault

BATCH = 100
KEEP_NOTED = 3 * 86400.0
"""Seconds for which the content of a delivery that became no message is kept."""


def lost_jobs(connection: Connection) -> list[Claim]:
    """Running jobs whose lease ran out."""
    rows = connection.execute(
        select(*CLAIM_COLUMNS)
        .where(in_state(JobState.RUNNING), jobs.c.lease_until < now())
        .order_by(jobs.c.lease_until)
        .limit(BATCH)
    )
    return [claim_of(row) for row in rows]


def rescue(connection: Connection, vault: Vault, claim: Claim, apology: Apology) -> bool:
    """Put a lost job back, or end it when its tries are used up. True when it was still lost."""
    return finish_lost_run(connection, vault, claim, apology) is not None


def expire_all_leases(connection: Connection) -> int:
    """At start on SQLite, where the file's lock proves that no other process is alive: every lease is dead."""
    return connection.execute(update(jobs).where(in_state(JobState.RUNNING)).values(lease_until=0)).rowcount


def repair_lanes(connection: Connection) -> int:
    """Find and repair what should not exist: blocked jobs in free lanes, jobs that wait for nobody, and unread messages
    or unsent replies without a job. Returns how many there were; any is worth an alarm."""
    close_orphans(connection, BATCH)  # a crash leaves them; that is no fault
    found = _free_blocked(connection) + _ready_forsaken(connection)
    return found + _answer_wanted(connection) + _send_unsent(connection)


_other = jobs.alias("other")


def _free_blocked(connection: Connection) -> int:
    live = select(_other.c.id).where(_other.c.lane == jobs.c.lane, in_state(*LIVE, of="other"))
    rows = connection.execute(
        select(jobs.c.lane, jobs.c.conversation_id)
        .where(in_state(JobState.BLOCKED), ~live.exists())
        .group_by(jobs.c.lane, jobs.c.conversation_id)
        .limit(BATCH)
    ).all()
    found = 0
    for lane, conversation_id in rows:
        if conversation_id is not None:
            lock_conversation(connection, conversation_id)
        else:
            lock_lane(connection, lane)
        taken = connection.execute(
            select(jobs.c.id).where(jobs.c.lane == lane, in_state(*LIVE)).limit(1)
        ).first()
        found += taken is None and promote(connection, lane)
    return found


def _ready_forsaken(connection: Connection) -> int:
    """Ready the jobs whose children have all ended, or are gone."""
    found = 0
    for job_id, conversation_id in forsaken(connection, BATCH):
        lock_conversation(connection, conversation_id)
        found += ready_parents(connection, {job_id})
    return found


def _answer_wanted(connection: Connection) -> int:
    live = select(jobs.c.id).where(jobs.c.lane == participants.c.id, in_state(*LIVE, JobState.BLOCKED))
    asleep = asleep_when_closed(connection)
    rows = connection.execute(
        select(participants.c.id, participants.c.conversation_id)
        .join(conversations, conversations.c.id == participants.c.conversation_id)
        .where(participants.c.wake_seq > participants.c.read_seq, ~live.exists())
        .where(conversations.c.closed_at.is_(None) | participants.c.agent_id.not_in(asleep))
        .limit(BATCH)
    ).all()
    found = 0
    for participant_id, conversation_id in rows:
        lock_conversation(connection, conversation_id)
        found += ensure_answer(connection, participant_id)
    return found


def _send_unsent(connection: Connection) -> int:
    live = select(jobs.c.id).where(jobs.c.lane == "deliver:" + replies.c.binding_id, in_state(*LIVE))
    rows = connection.execute(
        select(replies.c.workspace_id, replies.c.conversation_id, replies.c.binding_id)
        .where(IS_UNSENT, ~live.exists())
        .group_by(replies.c.workspace_id, replies.c.conversation_id, replies.c.binding_id)
        .limit(BATCH)
    ).all()
    found = 0
    for workspace_id, conversation_id, binding_id in rows:
        lock_conversation(connection, conversation_id)
        found += ensure_delivery(connection, workspace_id, conversation_id, binding_id)
    return found


def prune(connection: Connection, *, older_than: float) -> dict[str, int]:
    """Remove finished jobs past retention with their attempts, events and sent replies, and old deliveries.

    Messages, summaries and costs stay, and so do the digests by which a repeated message is recognised. A delivery that
    became no message keeps its content for a few days only: there are many, and they are looked at soon or never. The
    work is done in batches, so that nobody waits long for the writer.
    """
    before = now() - older_than
    old = (
        select(jobs.c.id)
        .where(jobs.c.finished_at < before, jobs.c.finished_at.is_not(None))
        .where(~select(replies.c.id).where(replies.c.job_id == jobs.c.id, IS_UNSENT).exists())
        .order_by(jobs.c.finished_at)
        .limit(BATCH)
    )
    ids = list(connection.execute(old).scalars())
    counts = {"jobs": 0, "events": 0, "deliveries": 0, "workers": 0}
    if ids:
        counts["events"] += connection.execute(delete(events).where(events.c.job_id.in_(ids))).rowcount
        _count_pruned_replies(connection, ids)
        counts["jobs"] += connection.execute(delete(jobs).where(jobs.c.id.in_(ids))).rowcount
    counts["deliveries"] += _prune_deliveries(connection, before)
    loose = (events.c.at < before) & events.c.job_id.is_(None) & events.c.kind.not_in(SUPERVISED)
    counts["events"] += _prune_by_id(connection, events, loose)
    _empty_noted(connection)
    counts["workers"] += connection.execute(delete(workers).where(workers.c.seen_at < before)).rowcount
    return counts


def _count_pruned_replies(connection: Connection, job_ids: list[int]) -> None:
    """Remember how many replies go with their jobs: clients know the others by their place among all."""
    query = (
        select(replies.c.conversation_id.label("place"), func.count().label("gone"))
        .join(bindings, bindings.c.id == replies.c.binding_id)
        .where(replies.c.job_id.in_(job_ids), bindings.c.conversation_id == replies.c.conversation_id)
        .group_by(replies.c.conversation_id)
    )
    counted = [dict(row._mapping) for row in connection.execute(query)]
    if counted:
        connection.execute(_ADD_PRUNED, counted)


_ADD_PRUNED = (
    update(conversations)
    .where(conversations.c.id == bindparam("place"))
    .values(pruned_replies=func.coalesce(conversations.c.pruned_replies, 0) + bindparam("gone"))
)


def _prune_deliveries(connection: Connection, before: ColumnElement[float]) -> int:
    """Delete old deliveries. Where the message must be recognised again, only the content is deleted."""
    columns = (deliveries.c.id, deliveries.c.message_digest)
    query = select(*columns).where(deliveries.c.received_at < before, _HAS_MORE).limit(BATCH)
    found = connection.execute(query).all()
    known = [row.id for row in found if row.message_digest is not None]
    others = [row.id for row in found if row.message_digest is None]
    connection.execute(update(deliveries).where(deliveries.c.id.in_(known)).values(sealed=None))
    connection.execute(delete(deliveries).where(deliveries.c.id.in_(others)))
    return len(found)


_HAS_MORE = text("(message_digest IS NULL OR sealed IS NOT NULL)")
"""As the partial index has it."""


def _empty_noted(connection: Connection) -> None:
    old = (
        select(deliveries.c.id)
        .where(deliveries.c.conversation_id.is_(None), deliveries.c.sealed.is_not(None))
        .where(deliveries.c.received_at < now() - KEEP_NOTED)
        .limit(BATCH)
    )
    connection.execute(update(deliveries).where(deliveries.c.id.in_(old)).values(sealed=None))


def _prune_by_id(connection: Connection, pruned: Any, condition: Any) -> int:
    ids = list(
        connection.execute(select(pruned.c.id).where(condition).order_by(pruned.c.id).limit(BATCH)).scalars()
    )
    return connection.execute(delete(pruned).where(pruned.c.id.in_(ids))).rowcount if ids else 0


def depth(connection: Connection) -> dict[str, int]:
    """How many jobs are in each live state, and how many are dead."""
    # One count each, because each has a partial index; together they would read every job there ever was.
    live = select(jobs.c.state, func.count()).where(in_state(*LIVE)).group_by(jobs.c.state)
    blocked, dead = (
        select(literal(state.value), func.count()).select_from(jobs).where(in_state(state))
        for state in (JobState.BLOCKED, JobState.DEAD)
    )
    counted = [row for query in (live, blocked, dead.where(ENDED_BADLY)) for row in connection.execute(query)]
    return {str(state): int(count) for state, count in counted if count}


def oldest_ready(connection: Connection) -> float:
    """Seconds the oldest ready job has waited; 0 when none does."""
    query = select(now() - func.min(jobs.c.run_at)).where(in_state(JobState.READY))
    return max(0.0, float(connection.execute(query).scalar() or 0))


def seen(connection: Connection, worker_id: str) -> None:
    """Note that a process is still there."""
    connection.execute(_SEEN, {"worker": worker_id})


_SEEN = update(workers).where(workers.c.id == bindparam("worker")).values(seen_at=now())
