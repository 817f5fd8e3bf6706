"""What heartbeats found and did, as rows: findings, the bounds that follow from them, and where they are muted.

Every bound is counted in the transaction that uses it up, under the conversation's lock. So it holds through restarts
and with several processes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from gofer.heartbeat.findings import RECOMMENDATIONS, Due, HeartbeatWatch, clock
from gofer.jobs.kinds import ANSWER, HEARTBEAT
from gofer.jobs.queue import SERVICE, submit
from gofer.runs.spend import today
from gofer.store import events as log
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.fast_sql import upsert
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    JobState,
    bindings,
    heartbeat_findings,
    in_state,
    jobs,
    participants,
    spends,
    tasks,
)

MAX_AN_HOUR, MAX_A_DAY = 1, 4
"""Nudges in one conversation, of all agents."""
HOUR, DAY = 3600.0, 86400.0
MAX_TOGETHER = 10
"""Findings of one run."""
MAX_CONVERSATIONS = 20
"""In which one look begins something; the next look goes on with the others."""
KEEP = 90 * DAY
"""Longer than anything is looked back for, so that nothing pruned is found again."""
LEDGER = "heartbeat:"
"""What the ledger's keys of heartbeats begin with."""
NUDGED, QUIET, DROPPED = "nudged", "quiet", "dropped"
NO_MONEY = "budget"
RESEARCH_CALL = "heartbeat"
"""What the tasks of heartbeats are known by."""
MAX_RESEARCH = 2
"""Tasks of one agent's heartbeat in 24 hours."""
RESEARCH_MICROS = 200_000
"""Millionths of a dollar that one of them may cost."""
LOW_PRIORITY = 100


def record(connection: Connection, watch: HeartbeatWatch, found: Sequence[Due]) -> int:
    """Put on record what a look found, and make a job for each conversation where something may be said. Returns how
    many were made.

    What has to wait (somebody there waits for an answer, or enough was said) is not put on record: the next look finds
    it again.
    """
    by_place = sorted(found, key=attrgetter("conversation_id"))
    made = 0
    for conversation_id, group in groupby(by_place, key=attrgetter("conversation_id")):
        if made >= MAX_CONVERSATIONS:
            break
        made += _record(connection, watch, conversation_id, list(group)[:MAX_TOGETHER])
    return made


def _record(
    connection: Connection, watch: HeartbeatWatch, conversation_id: str, found: Sequence[Due]
) -> bool:
    lock_conversation(connection, conversation_id)
    place = _place(connection, conversation_id)
    if place is None or holds_back(connection, watch.agent_id, conversation_id, watch.at):
        return False
    spent = spent_today(connection, watch.agent_id, watch.timezone)
    looks_only = watch.settings.budget == 0
    if not looks_only and spent >= round(watch.settings.budget * 1_000_000):
        return False  # tomorrow there is money again
    ids = [id_ for each in found if (id_ := _insert(connection, watch, each, looks_only)) is not None]
    if not ids or looks_only:
        return False
    job_id = submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=HEARTBEAT,
        lane=f"{HEARTBEAT}:{watch.agent_id}:{conversation_id}",
        pool=SERVICE,
        priority=LOW_PRIORITY,
        payload={"agent": watch.name},
        conversation_id=conversation_id,
        agent_id=watch.agent_id,
        connection_id=place,
        unique_key=f"{HEARTBEAT}:{ids[0]}",
    )
    mine = heartbeat_findings.c.id.in_(ids)
    connection.execute(update(heartbeat_findings).where(mine).values(job_id=job_id))
    return True


def _place(connection: Connection, conversation_id: str) -> str | None:
    query = select(bindings.c.connection_id).where(bindings.c.conversation_id == conversation_id)
    return connection.execute(query.order_by(bindings.c.id).limit(1)).scalar()


def _insert(connection: Connection, watch: HeartbeatWatch, found: Due, looks_only: bool) -> str | None:
    """The id of a finding that is news; None for one that another process has found."""
    id_ = new_id("find")
    code, sentence = RECOMMENDATIONS[found.code]
    row = {
        "id": id_,
        "agent_id": watch.agent_id,
        "conversation_id": found.conversation_id,
        "code": found.code,
        "subject": found.subject,
        "key": found.key(watch.agent_id),
        "recommendation": code,
        "state": DROPPED if looks_only else "found",
        "reason": NO_MONEY if looks_only else "",
        "found_at": watch.at,
        "settled_at": watch.at if looks_only else None,
    }
    new = (
        upsert(connection.dialect.name, heartbeat_findings)
        .values(**row)
        .on_conflict_do_nothing(index_elements=["key"])
    )
    if connection.execute(new).rowcount != 1:
        return None
    log.record(
        connection, "heartbeat.found", FIRST_WORKSPACE, conversation_id=found.conversation_id,
        data={"agent": watch.name, "finding": id_, "code": found.code, "subject": found.subject,
              "recommendation": sentence, "recommendation_code": code},
    )  # fmt: skip
    return id_


def holds_back(connection: Connection, agent_id: str, conversation_id: str, at: float) -> str:
    """Why an agent's heartbeat may not write to a conversation now; empty when it may. The caller holds its lock."""
    if is_muted(connection, agent_id, conversation_id):
        return "muted"
    awaited = (
        select(jobs.c.id)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER)
        .where(in_state(JobState.READY, JobState.BLOCKED, JobState.RUNNING, JobState.SCHEDULED))
        .limit(1)
    )
    if connection.execute(awaited).first() is not None:
        return "somebody waits"
    for window, most in ((HOUR, MAX_AN_HOUR), (DAY, MAX_A_DAY)):
        if nudges(connection, conversation_id, at, window) >= most:
            return "enough was said"
    return ""


def is_muted(connection: Connection, agent_id: str, conversation_id: str) -> bool:
    """Whether somebody asked the agent's heartbeat to be silent there, or it takes no part there any more."""
    query = select(participants.c.muted_at).where(
        participants.c.agent_id == agent_id, participants.c.conversation_id == conversation_id
    )
    row = connection.execute(query).first()
    return row is None or row.muted_at is not None


def nudges(connection: Connection, conversation_id: str, at: float, window: float) -> int:
    """How many nudges a conversation got around a moment. Those after it count, too: the clock may have jumped."""
    query = select(func.count(heartbeat_findings.c.job_id.distinct())).where(
        heartbeat_findings.c.conversation_id == conversation_id,
        heartbeat_findings.c.state == NUDGED,
        heartbeat_findings.c.settled_at.between(at - window, at + window),
    )
    return int(connection.execute(query).scalar_one())


def findings_of(connection: Connection, job_id: int) -> list[Row[Any]]:
    """The findings of a heartbeat's job, in an order that stays the same."""
    query = select(heartbeat_findings).where(heartbeat_findings.c.job_id == job_id)
    return list(connection.execute(query.order_by(heartbeat_findings.c.found_at, heartbeat_findings.c.id)))


def settle(connection: Connection, ids: Collection[str], state: str, at: float, reason: str = "") -> None:
    """Put on record what becomes of findings."""
    mine = heartbeat_findings.c.id.in_(list(ids))
    connection.execute(
        update(heartbeat_findings)
        .where(mine, heartbeat_findings.c.settled_at.is_(None))
        .values(state=state, reason=reason[:200], settled_at=at)
    )


def set_muted(connection: Connection, agent_id: str, conversation_id: str, *, muted: bool, by: str) -> bool:
    """Let an agent's heartbeat be silent in a conversation, or speak again; whether that changed anything."""
    lock_conversation(connection, conversation_id)
    here = (participants.c.agent_id == agent_id) & (participants.c.conversation_id == conversation_id)
    other = participants.c.muted_at.is_(None) if muted else participants.c.muted_at.is_not(None)
    changed = connection.execute(
        update(participants).where(here, other).values(muted_at=now() if muted else None)
    )
    if changed.rowcount == 1:
        log.record(
            connection, "conversation.changed", FIRST_WORKSPACE, conversation_id=conversation_id,
            data={"heartbeat": "muted" if muted else "unmuted", "agent_id": agent_id, "by": by},
        )  # fmt: skip
    return changed.rowcount == 1


def mute_everybody(connection: Connection, conversation_id: str, *, muted: bool, by: str) -> None:
    """The same for every agent that takes part in a conversation."""
    here = participants.c.conversation_id == conversation_id
    for agent_id in connection.execute(select(participants.c.agent_id).where(here)).scalars().all():
        set_muted(connection, agent_id, conversation_id, muted=muted, by=by)


def spent_today(
    connection: Connection, agent_id: str, timezone: str, *, but: tuple[int, str] = (0, "")
) -> int:
    """What an agent's heartbeat has spent or set aside today, in millionths of a dollar, without one call."""
    query = select(func.coalesce(func.sum(spends.c.micros), 0)).where(
        spends.c.agent_id == agent_id,
        spends.c.day == today(connection, timezone),
        spends.c.key.startswith(LEDGER, autoescape=True),
        ~((spends.c.job_id == but[0]) & (spends.c.key == but[1])),
    )
    return (
        int(connection.execute(query).scalar_one())
        + research_today(connection, agent_id, clock(connection))[1]
    )


def research_today(connection: Connection, agent_id: str, at: float) -> tuple[int, int]:
    """How many tasks an agent's heartbeat has begun in the last 24 hours, and what they cost in millionths of a dollar:
    all that they may cost while they are not over."""
    mine = select(heartbeat_findings.c.job_id).where(
        heartbeat_findings.c.agent_id == agent_id,
        heartbeat_findings.c.found_at.between(at - 3 * DAY, at + DAY),
    )
    rows = connection.execute(
        select(tasks.c.cost, tasks.c.finished_at)
        .where(tasks.c.parent_job_id.in_(mine), tasks.c.call_id == RESEARCH_CALL)
        .where(tasks.c.created_at > at - DAY)
    ).all()
    cost = [RESEARCH_MICROS if row.finished_at is None else round(row.cost * 1_000_000) for row in rows]
    return len(rows), sum(cost)


def prune_findings(connection: Connection) -> int:
    """Delete old findings in a batch that is larger than a day's; returns how many."""
    old = select(heartbeat_findings.c.id).where(heartbeat_findings.c.found_at < now() - KEEP).limit(5000)
    return connection.execute(delete(heartbeat_findings).where(heartbeat_findings.c.id.in_(old))).rowcount
