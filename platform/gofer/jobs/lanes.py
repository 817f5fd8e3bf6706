"""Lanes: the first blocked job runs when the job before it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, insert, literal, select, update

from gofer.store import events as log
from gofer.store import fast_sql
from gofer.store.db_time import now
from gofer.store.tables import JobState, events, in_state, jobs

AN_INSTANT = 0.001
"""Seconds that count as no delay: Postgres' clock moves on within a statement."""


def promote(connection: Connection, lane: str) -> bool:
    """Give a free lane to its first blocked job. The caller holds the lane's lock."""
    return bool(_promoted(connection, _IN_LANE[connection.dialect.name], {"lane_": lane}))


def promote_behind(connection: Connection, ended: Sequence[int]) -> set[str]:
    """Give the lanes of ended jobs to their first blocked jobs. Returns the lanes that have a live job again."""
    return _promoted(connection, _BEHIND[connection.dialect.name], {"ended": list(ended)})


def _promoted(connection: Connection, statement: Any, values: Mapping[str, Any]) -> set[str]:
    rows = fast_sql.fetch(connection, statement, values)
    if connection.dialect.name != "postgresql":
        log.record_many(
            connection,
            [
                {
                    "kind": "job.promoted",
                    "workspace_id": row.workspace_id,
                    "conversation_id": row.conversation_id,
                    "job_id": row.id,
                    "seq": row.event_seq,
                    "data": {"lane": row.lane},
                }
                for row in rows
            ],
        )
    return {row.lane for row in rows}


_blocked, _ended = jobs.alias("blocked"), jobs.alias("ended")


def _first_blocked(lane: Any) -> Any:
    # By lane as well, so that the index alone gives the first, however many wait behind it.
    return (
        select(_blocked.c.id)
        .where(_blocked.c.lane == lane, in_state(JobState.BLOCKED, of="blocked"))
        .order_by(_blocked.c.lane, _blocked.c.id)
        .limit(1)
        .scalar_subquery()
    )


def _promote(first: Any) -> Any:
    # The clock may have gone back since: nobody waits longer than was asked for.
    asked_for, left = jobs.c.run_at - jobs.c.created_at, jobs.c.run_at - now()
    waits = (asked_for > AN_INSTANT) & (left > AN_INSTANT)
    return (
        update(jobs)
        .where(jobs.c.id.in_(first))
        .values(
            state=case((waits, JobState.SCHEDULED.value), else_=JobState.READY.value),
            run_at=case((left > asked_for, now() + asked_for), else_=jobs.c.run_at),
            event_seq=jobs.c.event_seq + 1,
        )
        .returning(jobs.c.id, jobs.c.workspace_id, jobs.c.lane, jobs.c.conversation_id, jobs.c.event_seq)
    )


def _and_note(promoting: Any) -> Any:
    """Promote and log in one statement, which only Postgres can: one round trip less."""
    promoted = promoting.cte("promoted")
    noted = {
        "workspace_id": promoted.c.workspace_id,
        "kind": literal("job.promoted"),
        "version": literal(1),
        "conversation_id": promoted.c.conversation_id,
        "job_id": promoted.c.id,
        "seq": promoted.c.event_seq,
        "data": func.json_build_object("lane", promoted.c.lane),
        "tx": log.TX,
        "at": now(),
    }
    event = insert(events).from_select(list(noted), select(*noted.values()).select_from(promoted))
    return select(promoted).add_cte(event.cte("noted"))


def _behind(dialect: str) -> Any:
    return _promote(
        select(_first_blocked(_ended.c.lane)).where(fast_sql.among(dialect, _ended.c.id, "ended"))
    )


_IN_LANE = {
    "sqlite": _promote(_first_blocked(bindparam("lane_"))),
    "postgresql": _and_note(_promote(_first_blocked(bindparam("lane_")))),
}
_BEHIND = {"sqlite": _behind("sqlite"), "postgresql": _and_note(_behind("postgresql"))}
