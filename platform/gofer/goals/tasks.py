"""Tasks as their rows hold them: made, started, ended. What people and models said is sealed.

The conversation's lock is held by whoever changes a task; every change is an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.errors import NotFound
from gofer.jobs.children import record_task
from gofer.jobs.kinds import TASK
from gofer.jobs.queue import WORKER, Claim, submit
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.tables import jobs, tasks
from gofer.vault.envelope import DataKey, Vault

OVER = frozenset({"done", "failed", "blocked", "dropped"})
"""States in which a task has ended; a blocked one waits for the planner, which makes another."""
EXECUTION = "execution"


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task with its words."""

    id: str
    goal_id: str | None
    conversation_id: str
    number: int
    kind: str
    state: str
    needs: tuple[int, ...]
    title: str
    instructions: str
    trust: str
    narrowed: bool
    asker: str
    result: Mapping[str, Any] | None
    reason: str
    job_id: int | None
    call_id: str
    tries: int
    cost: float
    created_at: float
    started_at: float | None
    finished_at: float | None


def new_task(
    connection: Connection,
    vault: Vault,
    *,
    goal: Any,
    number: int,
    kind: str,
    title: str,
    instructions: str,
    needs: Sequence[int] = (),
    call_id: str = "",
) -> str:
    """Make a task of a goal, with the goal's trust; returns its id."""
    task_id = new_id("task")
    key = conversation_key(connection, vault, goal.conversation_id)
    said = {
        "title": title,
        "instructions": instructions,
        "kind": kind,
        "trust": goal.trust,
        "narrowed": goal.narrowed,
        "asker": goal.asked_by,
    }
    row = connection.execute(
        tasks.insert()
        .values(
            id=task_id,
            workspace_id=goal.workspace_id,
            conversation_id=goal.conversation_id,
            agent_id=goal.agent_id,
            goal_id=goal.id,
            call_id=call_id,
            number=number,
            kind=kind,
            state="queued",
            needs=list(needs),
            sealed=seal(key, said, "task", task_id),
            tries=0,
            cost=0,
            reason="",
            created_at=now(),
        )
        .returning(*tasks.c)
    ).one()
    record_task(connection, row)
    return task_id


def start_task(connection: Connection, task_id: str, *, parent: Claim) -> int:
    """Make the job of a task's next try, once; returns the job's id."""
    row = find_task(connection, task_id)
    unique_key = f"{TASK}:{task_id}:{row.tries + 1}"
    lane = f"{EXECUTION}:{row.conversation_id}" if row.kind == EXECUTION else f"{TASK}:{task_id}"
    made = submit(
        connection,
        workspace_id=row.workspace_id,
        kind=TASK,
        lane=lane,
        pool=WORKER,
        payload={"task": task_id},
        unique_key=unique_key,
        conversation_id=row.conversation_id,
        agent_id=row.agent_id,
        connection_id=parent.connection_id,
        parent_id=parent.id,
        max_attempts=MAX_ATTEMPTS,
    )
    if made is None:
        made = connection.execute(select(jobs.c.id).where(jobs.c.unique_key == unique_key)).scalar_one()
    _change(connection, task_id, job_id=made, tries=row.tries + 1)
    return int(made)


MAX_ATTEMPTS = 20
"""Tries of a task's job; most are lost with a process, and go on where that one was."""


def find_task(connection: Connection, task_id: str) -> Any:
    """A task's row; raises NotFound."""
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no task {task_id[:40]!r}.")
    return row


def tasks_of_goal(connection: Connection, vault: Vault, goal_id: str) -> list[TaskRecord]:
    """The tasks of a goal in their order; raises NotFound when their conversation is purged."""
    query = (
        select(tasks)
        .where(tasks.c.goal_id == goal_id)
        .order_by(tasks.c.number, tasks.c.created_at, tasks.c.id)
    )
    rows = connection.execute(query).all()
    if not rows:
        return []
    key = conversation_key(connection, vault, rows[0].conversation_id)
    return [opened(key, row) for row in rows]


def opened(key: DataKey, row: Any) -> TaskRecord:
    """A task's row with its words. What it may do is what is sealed into it."""
    if row.sealed is None:
        raise NotFound("This task's conversation was purged.")
    said: dict[str, Any] = unseal(key, row.sealed, "task", row.id)
    result = unseal(key, row.result, "task.result", row.id) if row.result is not None else None
    return TaskRecord(
        id=row.id,
        goal_id=row.goal_id,
        conversation_id=row.conversation_id,
        number=row.number,
        kind=str(said["kind"]),
        state=row.state,
        needs=tuple(row.needs),
        title=str(said["title"]),
        instructions=str(said["instructions"]),
        trust=str(said["trust"]),
        narrowed=bool(said["narrowed"]),
        asker=str(said["asker"]),
        result=result,
        reason=row.reason,
        job_id=row.job_id,
        call_id=row.call_id,
        tries=row.tries,
        cost=row.cost,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def begin_task(connection: Connection, task_id: str) -> None:
    """Note that a task is being worked on."""
    row = find_task(connection, task_id)
    if row.state == "queued":
        _change(connection, task_id, state="running", started_at=now())


def finish_task(
    connection: Connection,
    vault: Vault,
    task_id: str,
    state: str,
    result: Mapping[str, Any],
    *,
    reason: str = "",
) -> None:
    """End a task with what came of it; nothing when it has ended already."""
    row = find_task(connection, task_id)
    key = conversation_key(connection, vault, row.conversation_id)
    sealed = seal(key, dict(result), "task.result", task_id)
    _change(connection, task_id, state=state, result=sealed, reason=reason, finished_at=now())


def drop_task(connection: Connection, task_id: str, reason: str) -> None:
    """Take a task that is not over out of the plan."""
    _change(connection, task_id, state="dropped", reason=reason, finished_at=now())


def fail_task(connection: Connection, task_id: str, reason: str) -> None:
    """End a task that came to nothing."""
    _change(connection, task_id, state="failed", reason=reason, finished_at=now())


def _change(connection: Connection, task_id: str, **values: Any) -> None:
    """Change a task that is not over, and tell of it."""
    unfinished = (tasks.c.id == task_id) & tasks.c.finished_at.is_(None)
    row = connection.execute(
        update(tasks).where(unfinished).values(**values).returning(*tasks.c)
    ).one_or_none()
    if row is not None:
        record_task(connection, row)
