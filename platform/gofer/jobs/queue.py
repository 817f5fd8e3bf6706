"""The queue's verbs: submit, claim, renew, stage. Each is one transaction over a connection."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Float,
    Integer,
    String,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    select,
    text,
    union_all,
    update,
)

from gofer.errors import StoreError
from gofer.jobs.outcome import PAUSE_REQUESTED
from gofer.store import events as log
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import LIVE, JobState, agents, attempts, connections, events, in_state, jobs

AGENT, SERVICE, WORKER, PLANNER = "agent", "service", "worker", "planner"
"""The pools of slots."""


class Claim(NamedTuple):
    """A job in the hands of one worker. Every write the run makes carries its owner and fence."""

    id: int
    workspace_id: str
    kind: str
    lane: str
    owner: str
    fence: int
    attempts: int
    max_attempts: int
    priority: int
    conversation_id: str | None
    participant_id: str | None
    agent_id: str | None
    connection_id: str | None
    covers_from: int
    covers_to: int | None
    payload: Mapping[str, Any]
    cancel_requested: bool


def lock_lane(connection: Connection, lane: str) -> None:
    """Hold a lane that has no conversation row to lock, until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY, {"key": zlib.crc32(lane.encode()) - 2**31})


# Postgres takes two signed 32-bit numbers, and has to be told that this is one.
_ADVISORY = text("SELECT pg_advisory_xact_lock(7301, CAST(:key AS integer))")


def submit(
    connection: Connection,
    *,
    workspace_id: str,
    kind: str,
    lane: str,
    pool: str = AGENT,
    payload: Mapping[str, Any] | None = None,
    priority: int = 0,
    delay: float = 0,
    max_attempts: int = 5,
    unique_key: str | None = None,
    conversation_id: str | None = None,
    participant_id: str | None = None,
    agent_id: str | None = None,
    connection_id: str | None = None,
    covers_from: int = 0,
    parent_id: int | None = None,
) -> int | None:
    """Make a job: ready, scheduled, or blocked behind its lane. None when its unique key was used before.

    The caller holds the lock of `conversation_id` if it gives one; other lanes are locked here.
    """
    if conversation_id is None:
        lock_lane(connection, lane)
    row = fast_sql.first(
        connection,
        _submit_for(connection.dialect.name),
        {
            **_NEW,
            "delay": delay,
            "lane_": lane,
            "if_free": JobState.SCHEDULED if delay > 0 else JobState.READY,
            "workspace_id": workspace_id,
            "kind": kind,
            "pool": pool,
            "lane": lane,
            "priority": priority,
            "max_attempts": max_attempts,
            "conversation_id": conversation_id,
            "participant_id": participant_id,
            "agent_id": agent_id,
            "connection_id": connection_id,
            "covers_from": covers_from,
            "payload": dict(payload or {}),
            "unique_key": unique_key,
            "parent_id": parent_id,
        },
    )
    if row is None:
        return None
    if connection.dialect.name != "postgresql":
        log.record(
            connection, "job.created", workspace_id, job_id=row.id, seq=1, conversation_id=conversation_id,
            data={"kind": kind, "lane": lane, "state": row.state},
        )  # fmt: skip
    return int(row.id)


_NEW: dict[str, Any] = {
    "attempts": 0,
    "fence": 0,
    "cancel_requested": False,
    "event_seq": 1,
    "covers_to": None,
    "reason": "",
}

_GIVEN = (
    *_NEW, "workspace_id", "kind", "pool", "lane", "priority", "max_attempts", "conversation_id", "participant_id",
    "agent_id", "connection_id", "covers_from", "payload", "unique_key", "parent_id",
)  # fmt: skip

_LANE_TAKEN = exists().where(jobs.c.lane == bindparam("lane_"), in_state(*LIVE))


def _submit(dialect: str) -> Any:
    # The lane may be read in the same statement, because an earlier statement has locked it.
    return (
        fast_sql.upsert(dialect, jobs)
        .values(
            **{name: bindparam(name, type_=jobs.c[name].type) for name in _GIVEN},
            created_at=now(),
            run_at=now() + bindparam("delay", type_=Float),
            state=case((_LANE_TAKEN, JobState.BLOCKED.value), else_=bindparam("if_free", type_=String)),
        )
        .on_conflict_do_nothing(
            index_elements=[jobs.c.unique_key], index_where=text("unique_key IS NOT NULL")
        )
        .returning(jobs.c.id, jobs.c.state)
    )


def _submit_and_note() -> Any:
    """The job and its first event in one statement, which only Postgres can: one round trip less."""
    made = _submit("postgresql").cte("made")
    noted = {
        "workspace_id": bindparam("workspace_id", type_=String),
        "kind": literal("job.created"),
        "version": literal(1),
        "conversation_id": bindparam("conversation_id", type_=String),
        "job_id": made.c.id,
        "seq": literal(1),
        "data": func.json_build_object(
            *("kind", bindparam("kind", type_=String)),
            *("lane", bindparam("lane", type_=String)),
            *("state", made.c.state),
        ),
        "tx": log.TX,
        "at": now(),
    }
    event = insert(events).from_select(list(noted), select(*noted.values()).select_from(made))
    return select(made).add_cte(event.cte("noted"))


@cache
def _submit_for(dialect: str) -> Any:
    return _submit_and_note() if dialect == "postgresql" else _submit(dialect)


class TaskBounds(NamedTuple):
    """How many tasks all processes together run at once."""

    instance: int | None = None
    agent: int | None = None
    """For each agent."""


NO_BOUNDS = TaskBounds()


async def claim(
    database: Database,
    *,
    owner: str,
    lease: float,
    limits: Mapping[str, int],
    max_running: int | None = None,
    tasks: TaskBounds = NO_BOUNDS,
) -> dict[str, list[Claim]]:
    """Claim ready jobs for several pools of slots, in as few round trips as the database allows."""
    with_caps = partial(_claim_each, owner=owner, lease=lease, max_running=max_running, tasks=tasks)
    if database.dialect != "postgresql" or max_running is not None:
        return await database.write(with_caps, limits=limits)
    taken = await database.write_one(_claim_at_once, owner=owner, lease=lease, limits=limits)
    # What is claimed must be begun, also when the second claim fails.
    with contextlib.suppress(*([StoreError] if taken else [])):
        if limits.get(AGENT, 0) > 0 and AGENT not in taken and await database.write_one(_capped):
            taken |= await database.write(with_caps, limits={AGENT: limits[AGENT]})
        if limits.get(WORKER, 0) > 0 and (
            WORKER in taken or (not taken and await database.write_one(_tasks_wait))
        ):
            taken |= await database.write(with_caps, limits={WORKER: limits[WORKER]})
    return taken


def _claim_each(
    connection: Connection,
    *,
    owner: str,
    lease: float,
    limits: Mapping[str, int],
    max_running: int | None = None,
    tasks: TaskBounds = NO_BOUNDS,
) -> dict[str, list[Claim]]:
    """Take ready jobs for several pools of slots."""
    return {
        pool: _claim_tasks(connection, owner, lease, limit, tasks)
        if pool == WORKER
        else _claim_for(connection, owner, lease, limit, pool, max_running)
        for pool, limit in limits.items()
        if limit > 0
    }


def _claim_tasks(
    connection: Connection, owner: str, lease: float, limit: int, bounds: TaskBounds
) -> list[Claim]:
    """Claim tasks one by one within their bounds, under a lock that all claimers share."""
    if not _tasks_wait(connection):
        return []
    lock_lane(connection, "task bounds")
    taken: list[Claim] = []
    running = Counter({row.agent_id or "": row.running for row in connection.execute(_RUNNING_TASKS)})
    while len(taken) < limit and (bounds.instance is None or running.total() < bounds.instance):
        full = frozenset(
            agent for agent, count in running.items() if bounds.agent is not None and count >= bounds.agent
        )
        one = _claim(connection, owner, lease, 1, WORKER, full, frozenset())
        if not one:
            break
        running[one[0].agent_id or ""] += 1
        taken += one
    return taken


_RUNNING_TASKS = (
    select(jobs.c.agent_id, func.count().label("running"))
    .where(in_state(JobState.RUNNING), jobs.c.pool == WORKER)
    .group_by(jobs.c.agent_id)
)


def _tasks_wait(connection: Connection) -> bool:
    return bool(fast_sql.scalar(connection, _ANY_TASK))


def _claim_for(
    connection: Connection, owner: str, lease: float, limit: int, pool: str, max_running: int | None
) -> list[Claim]:
    # Caps bound the work of agents; service jobs such as sending an answer must not wait for them.
    if pool != AGENT or (max_running is None and not _capped(connection)):
        return _claim(connection, owner, lease, limit, pool, frozenset(), frozenset())
    return _claim_within_caps(connection, owner, lease, limit, pool, max_running)


CLAIM_COLUMNS = (
    jobs.c.id, jobs.c.workspace_id, jobs.c.kind, jobs.c.lane, jobs.c.owner, jobs.c.fence, jobs.c.attempts,
    jobs.c.max_attempts, jobs.c.priority, jobs.c.conversation_id, jobs.c.participant_id, jobs.c.agent_id,
    jobs.c.connection_id, jobs.c.covers_from, jobs.c.covers_to, jobs.c.payload, jobs.c.cancel_requested,
)  # fmt: skip


def claim_of(row: Any) -> Claim:
    """A row that begins with `CLAIM_COLUMNS`, which are a Claim's fields in their order."""
    return Claim._make(row[: len(CLAIM_COLUMNS)])


_READY = (
    select(jobs.c.id)
    .where(in_state(JobState.READY), jobs.c.pool == bindparam("from_pool"))
    .order_by(jobs.c.priority, jobs.c.id)
    .limit(bindparam("at_most"))
    .with_for_update(skip_locked=True)
)


def _take(ready: Any) -> Any:
    # A materialised CTE, because Postgres may run a plain subselect again and take more than its limit.
    picked = ready.cte("picked").prefix_with("MATERIALIZED", dialect="postgresql")
    return _taking(select(picked.c.id))


def _taking(picked: Any) -> Any:
    return (
        update(jobs)
        .where(jobs.c.id.in_(picked))
        .values(
            state=JobState.RUNNING,
            owner=bindparam("by"),
            fence=jobs.c.fence + 1,
            attempts=jobs.c.attempts + 1,
            event_seq=jobs.c.event_seq + 1,
            lease_until=now() + bindparam("for_seconds"),
        )
        .returning(*CLAIM_COLUMNS, jobs.c.event_seq, jobs.c.pool)
    )


_TAKE = _take(_READY)

_BEGIN_ATTEMPT = insert(attempts).values(started_at=now(), outcome="", reason="", cost=0)


def _claim(
    connection: Connection,
    owner: str,
    lease: float,
    limit: int,
    pool: str,
    full_agents: frozenset[str],
    full_connections: frozenset[str],
) -> list[Claim]:
    values = {"by": owner, "for_seconds": lease, "from_pool": pool, "at_most": limit}
    if not full_agents and not full_connections:
        rows = fast_sql.fetch(connection, _TAKE, values)
    else:
        ready = _READY
        if full_agents:
            ready = ready.where(func.coalesce(jobs.c.agent_id, "").not_in(full_agents))
        if full_connections:
            ready = ready.where(func.coalesce(jobs.c.connection_id, "").not_in(full_connections))
        rows = list(connection.execute(_take(ready), values))
    if not rows:
        return []
    rows.sort(key=lambda row: (row.priority, row.id))
    fast_sql.many(
        connection,
        _BEGIN_ATTEMPT,
        [{"job_id": row.id, "fence": row.fence, "number": row.attempts, "owner": owner} for row in rows],
    )
    log.record_many(
        connection,
        [
            {
                "kind": "attempt.started",
                "workspace_id": row.workspace_id,
                "conversation_id": row.conversation_id,
                "job_id": row.id,
                "seq": row.event_seq,
                "fence": row.fence,
                "data": {"number": row.attempts, "worker": owner},
            }
            for row in rows
        ],
    )
    return [claim_of(row) for row in rows]


def _claim_at_once(
    connection: Connection, *, owner: str, lease: float, limits: Mapping[str, int]
) -> dict[str, list[Claim]]:
    """Claim answers and errands in one statement of Postgres; agents' jobs only while there are no caps. If tasks are
    ready as well, their pool is in the answer, with none claimed.

    Each further statement would be a round trip, and so would the begin and end of a transaction.
    """
    most = {f"most_{pool}": max(0, limits.get(pool, 0)) for pool in (AGENT, SERVICE, PLANNER)}
    rows = fast_sql.fetch(connection, _TAKE_AT_ONCE, {"by": owner, "for_seconds": lease, **most})
    rows.sort(key=lambda row: (row.priority, row.id))
    claims: dict[str, list[Claim]] = {WORKER: []} if any(row.tasks_wait for row in rows) else {}
    for row in rows:
        claims.setdefault(row.pool, []).append(claim_of(row))
    return claims


def _take_at_once() -> Any:
    picked = [
        select(jobs.c.id)
        .where(in_state(JobState.READY), jobs.c.pool == pool, *conditions)
        .order_by(jobs.c.priority, jobs.c.id)
        .limit(bindparam(f"most_{pool}", type_=Integer))
        .with_for_update(skip_locked=True)
        .cte(f"for_{pool}")
        .prefix_with("MATERIALIZED")
        for pool, conditions in ((AGENT, [~_HAS_CAP]), (SERVICE, []), (PLANNER, []))
    ]
    taken = _taking(union_all(*(select(each.c.id) for each in picked))).cte("taken")
    begun = {
        "job_id": taken.c.id,
        "fence": taken.c.fence,
        "number": taken.c.attempts,
        "owner": taken.c.owner,
        "started_at": now(),
        "outcome": literal(""),
        "reason": literal(""),
        "cost": literal(0.0),
    }
    noted = {
        "workspace_id": taken.c.workspace_id,
        "kind": literal("attempt.started"),
        "version": literal(1),
        "conversation_id": taken.c.conversation_id,
        "job_id": taken.c.id,
        "seq": taken.c.event_seq,
        "fence": taken.c.fence,
        "data": func.json_build_object("number", taken.c.attempts, "worker", taken.c.owner),
        "tx": log.TX,
        "at": now(),
    }
    return select(taken, _TASK_READY.label("tasks_wait")).add_cte(
        *(
            insert(table).from_select(list(values), select(*values.values())).cte(f"into_{table.name}")
            for table, values in ((attempts, begun), (events, noted))
        )
    )


_HAS_CAP = exists().where(agents.c.max_running.is_not(None)) | exists().where(
    connections.c.max_running.is_not(None)
)
_ready_task = jobs.alias("ready_task")
_TASK_READY = exists().where(in_state(JobState.READY, of="ready_task"), _ready_task.c.pool == WORKER)
_ANY_TASK = select(_TASK_READY)
_TAKE_AT_ONCE = _take_at_once()

_ANY_CAP = select(_HAS_CAP)


def _capped(connection: Connection) -> bool:
    return bool(fast_sql.scalar(connection, _ANY_CAP))


def _claim_within_caps(
    connection: Connection, owner: str, lease: float, limit: int, pool: str, max_running: int | None
) -> list[Claim]:
    """Claim under a lock that all claimers share, so that the counts are still true when they are used."""
    lock_lane(connection, "caps")
    taken: list[Claim] = []
    while len(taken) < limit:
        if max_running is not None and _running(connection, pool) >= max_running:
            break
        full_agents, full_connections = _full(connection, agents), _full(connection, connections)
        one = _claim(connection, owner, lease, 1, pool, full_agents, full_connections)
        if not one:
            break
        taken += one
    return taken


def _running(connection: Connection, pool: str) -> int:
    query = select(func.count()).select_from(jobs).where(in_state(JobState.RUNNING), jobs.c.pool == pool)
    return int(connection.execute(query).scalar_one())


def _full(connection: Connection, capped: Any) -> frozenset[str]:
    """The agents (or connections) that run as many jobs as they may."""
    column = jobs.c.agent_id if capped is agents else jobs.c.connection_id
    query = (
        select(capped.c.id)
        .outerjoin(jobs, (column == capped.c.id) & (in_state(JobState.RUNNING)) & (jobs.c.pool == AGENT))
        .where(capped.c.max_running.is_not(None))
        .group_by(capped.c.id, capped.c.max_running)
        .having(func.count(jobs.c.id) >= capped.c.max_running)
    )
    return frozenset(connection.execute(query).scalars())


class HeldJob(NamedTuple):
    """What the store says of a job that a process runs."""

    fence: int
    cancel_requested: bool
    pause_requested: bool


def _held_job(row: Any) -> HeldJob:
    return HeldJob(row.fence, row.cancel_requested, row.reason == PAUSE_REQUESTED)


def renew(connection: Connection, *, owner: str, lease: float, held: Collection[int]) -> dict[int, HeldJob]:
    """Prolong the leases of the jobs that this process runs, in one statement. Returns what the store says of each.

    A job that is missing from the answer is no longer ours: its run must stop. A job whose end could not be written is
    not renewed: its lease runs out, and another worker takes it.
    """
    rows = connection.execute(_RENEW, {"by": owner, "for_seconds": lease, "in_hand": list(held)})
    return {row.id: _held_job(row) for row in rows}


_RENEW = (
    update(jobs)
    .where(jobs.c.id.in_(bindparam("in_hand", expanding=True)))
    .where(jobs.c.owner == bindparam("by"), in_state(JobState.RUNNING))
    .values(lease_until=now() + bindparam("for_seconds"))
    .returning(jobs.c.id, jobs.c.fence, jobs.c.cancel_requested, jobs.c.reason)
)


def held_by(connection: Connection, *, owner: str) -> list[Claim]:
    """The jobs that the store says a process runs."""
    query = select(*CLAIM_COLUMNS).where(jobs.c.owner == owner, in_state(JobState.RUNNING))
    return [claim_of(row) for row in connection.execute(query)]


def held(connection: Connection, *, owner: str) -> dict[int, HeldJob]:
    """Each job that the store says a process runs, as `renew` returns them."""
    query = select(jobs.c.id, jobs.c.fence, jobs.c.cancel_requested, jobs.c.reason).where(
        jobs.c.owner == owner, in_state(JobState.RUNNING)
    )
    return {row.id: _held_job(row) for row in connection.execute(query)}


def stage(connection: Connection) -> tuple[int, float | None]:
    """Make scheduled jobs ready whose time has come; returns how many, and the seconds until the next one."""
    promoted = connection.execute(_STAGE).rowcount
    following = connection.execute(_NEXT_DUE).scalar()
    return promoted, None if following is None else max(0.0, float(following))


_STAGE = update(jobs).where(in_state(JobState.SCHEDULED), jobs.c.run_at <= now()).values(state=JobState.READY)
_NEXT_DUE = select(func.min(jobs.c.run_at) - now()).where(in_state(JobState.SCHEDULED))


def count_waiting(connection: Connection) -> int:
    """How many jobs wait or run. Intake refuses new work above a limit."""
    query = (
        select(func.count())
        .select_from(jobs)
        .where(in_state(JobState.READY, JobState.BLOCKED, JobState.RUNNING))
    )
    return int(connection.execute(query).scalar_one())
