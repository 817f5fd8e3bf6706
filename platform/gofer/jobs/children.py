"""Jobs that wait for other jobs: a parent, and the children that it made.

Both belong to one conversation. Its lock is held whenever one of them ends, so the end of a child readies its waiting
parent once, and no parent begins to wait for a child that has just ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, exists, select, update

from gofer.jobs.kinds import TASK
from gofer.jobs.outcome import PAUSED, NewJob, WaitForJobs
from gofer.jobs.queue import Claim, submit
from gofer.store import events as log
from gofer.store import fast_sql
from gofer.store.db_time import now
from gofer.store.tables import FINAL, LIVE, JobState, in_state, jobs, tasks

FOR_ALL, FOR_ANY = "jobs.all", "jobs.any"
"""The reason of a job that waits until all of its children have ended, or until the next one has."""
SIGNALLED = "job.signalled"
ENDED = {JobState.CANCELLED: "dropped", JobState.DEAD: "failed", JobState.DONE: "failed"}
"""What becomes of a task whose job ended without a result."""

_child = jobs.alias("child")
UNFINISHED = (*LIVE, JobState.BLOCKED)
HAS_CHILDREN = exists().where(_child.c.parent_id == jobs.c.id, in_state(*UNFINISHED, of="child"))


def submit_children(connection: Connection, claim: Claim, wait: WaitForJobs) -> bool:
    """Make the children that a run asked for, each once. Returns whether the run has to wait for any job."""
    if claim.conversation_id is None:
        raise ValueError("Only a job of a conversation can wait for other jobs.")
    made = [submit_child(connection, claim, child) for child in wait.children]
    alive = _unfinished(connection, [*wait.waits_for, *made])
    if wait.any:
        return bool(alive) and alive >= {*wait.waits_for, *made}
    return bool(alive)


def submit_child(connection: Connection, claim: Claim, child: NewJob) -> int:
    """Make a child of a job, once; returns its id. A task's row then names its job."""
    made = submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=child.kind,
        lane=child.lane,
        pool=child.pool,
        payload=child.payload,
        priority=child.priority,
        delay=child.delay,
        max_attempts=child.max_attempts,
        unique_key=child.unique_key,
        conversation_id=claim.conversation_id,
        agent_id=claim.agent_id,
        connection_id=claim.connection_id,
        parent_id=claim.id,
    )
    if made is None:
        made = int(
            connection.execute(select(jobs.c.id).where(jobs.c.unique_key == child.unique_key)).scalar_one()
        )
    elif child.kind == TASK:
        for row in fast_sql.fetch(connection, _GIVE_JOB, {"task": child.payload["task"], "job": made}):
            record_task(connection, row)
    return made


_GIVE_JOB = (
    update(tasks)
    .where(tasks.c.id == bindparam("task"), tasks.c.finished_at.is_(None))
    .values(job_id=bindparam("job"), tries=tasks.c.tries + 1)
    .returning(*tasks.c)
)


def _unfinished(connection: Connection, ids: Collection[int]) -> set[int]:
    rows = fast_sql.fetch(connection, _ALIVE[connection.dialect.name], {"jobs": list(ids)})
    return {row.id for row in rows}


_ALIVE = {
    dialect: select(jobs.c.id).where(fast_sql.among(dialect, jobs.c.id, "jobs"), in_state(*UNFINISHED))
    for dialect in ("sqlite", "postgresql")
}


def children_of(connection: Connection, job_id: int) -> list[int]:
    """The unfinished jobs that a job has made and nobody has asked to stop."""
    query = select(jobs.c.id).where(
        jobs.c.parent_id == job_id, in_state(*UNFINISHED), ~jobs.c.cancel_requested
    )
    return list(connection.execute(query.order_by(jobs.c.id)).scalars())


def ready_parents(connection: Connection, parents: Collection[int]) -> bool:
    """Ready the jobs that a child's end concerns: all but those that wait for further children. Returns whether there
    were any. Conversations locked.

    A job that waits for a person, or sleeps, looks at what its child gave and waits again. One that runs may have
    looked too early: it runs once more before it waits.
    """
    if not parents:
        return False
    given = {"parents": sorted(parents)}
    readying, signalling = _WAKE_PARENTS[connection.dialect.name]
    rows = fast_sql.fetch(connection, readying, given)
    for kind, found in (("job.woken", rows), (SIGNALLED, fast_sql.fetch(connection, signalling, given))):
        for row in found:
            log.record(
                connection, kind, row.workspace_id, job_id=row.id, seq=row.event_seq, fence=row.fence,
                conversation_id=row.conversation_id, data={"by": "jobs"},
            )  # fmt: skip
    return bool(rows)


_OF_PARENT = jobs.c.id, jobs.c.workspace_id, jobs.c.conversation_id, jobs.c.event_seq, jobs.c.fence


def _wake_parents(dialect: str) -> tuple[Any, Any]:
    """Readies parents that wait, and signals those that run."""
    counted = update(jobs).where(fast_sql.among(dialect, jobs.c.id, "parents"))
    counted = counted.values(event_seq=jobs.c.event_seq + 1).returning(*_OF_PARENT)
    readying = (
        counted.where(in_state(JobState.WAITING, JobState.SCHEDULED))
        .where(~((jobs.c.reason == FOR_ALL) & HAS_CHILDREN), jobs.c.reason != PAUSED)
        .values(state=JobState.READY, run_at=now())
    )
    return readying, counted.where(in_state(JobState.RUNNING))


_WAKE_PARENTS = {dialect: _wake_parents(dialect) for dialect in ("sqlite", "postgresql")}


def forsaken(connection: Connection, limit: int) -> list[Any]:
    """Jobs that wait for children of which none is left: nobody would ever ready them."""
    query = (
        select(jobs.c.id, jobs.c.conversation_id)
        .where(in_state(JobState.WAITING), jobs.c.reason.in_((FOR_ALL, FOR_ANY)), ~HAS_CHILDREN)
        .order_by(jobs.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).all())


def close_tasks(connection: Connection, ended: Sequence[tuple[int, JobState, str]]) -> None:
    """Close the tasks of jobs that ended without giving a result: job, state, reason."""
    for job_id, state, reason in ended:
        closed = {"job": job_id, "to_state": ENDED[state], "why": reason or "no_result"}
        for row in fast_sql.fetch(connection, _CLOSE, closed):
            record_task(connection, row)


_CLOSE = (
    update(tasks)
    .where(tasks.c.job_id == bindparam("job"), tasks.c.finished_at.is_(None))
    .values(state=bindparam("to_state"), reason=bindparam("why"), finished_at=now())
    .returning(*tasks.c)
)


def close_orphans(connection: Connection, limit: int) -> int:
    """Close tasks that no job will ever do: their run ended before it made the jobs. Returns how many there were."""
    ended = exists().where(_child.c.id == tasks.c.parent_job_id, in_state(*FINAL, of="child"))
    lost = select(tasks.c.id).where(
        tasks.c.finished_at.is_(None), tasks.c.job_id.is_(None), tasks.c.parent_job_id.is_not(None), ended
    )
    closed = {"state": "dropped", "reason": "run.ended", "finished_at": now()}
    query = update(tasks).where(tasks.c.id.in_(lost.limit(limit)), tasks.c.finished_at.is_(None))
    rows = connection.execute(query.values(**closed).returning(*tasks.c)).all()
    for row in rows:
        record_task(connection, row)
    return len(rows)


def record_task(connection: Connection, row: Any) -> None:
    """Tell of a task's change, without anybody's words."""
    facts = {
        "task": row.id,
        "goal": row.goal_id,
        "job": row.job_id,
        "parent": row.parent_job_id,
        "number": row.number,
        "kind": row.kind,
        "state": row.state,
        "reason": row.reason,
    }
    log.record(connection, "task.changed", row.workspace_id, conversation_id=row.conversation_id, data=facts)
