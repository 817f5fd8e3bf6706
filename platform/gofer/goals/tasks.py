"""Tasks as their rows hold them: made, started, ended. What people and models said is sealed.

The conversation's lock is held by whoever changes a task; every change is an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from gofer.agent.conversation import TaskResults
from gofer.agent.outcome import Delegated
from gofer.agent.prices import MICROS
from gofer.errors import NotFound
from gofer.goals.load import WAITS, count_tasks
from gofer.jobs.children import record_task, submit_child
from gofer.jobs.fence import hold
from gofer.jobs.kinds import TASK
from gofer.jobs.outcome import NewJob
from gofer.jobs.queue import PLANNER, WORKER, Claim
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.tables import FINAL, in_state, jobs, tasks
from gofer.tool import NewTask
from gofer.vault.envelope import DataKey, Vault

OVER = frozenset({"done", "failed", "blocked", "dropped"})
"""States in which a task has ended; a blocked one waits for the planner, which makes another."""
RESEARCH, EXECUTION, STATUS = "research", "execution", "status"
PLAN, REPORT = "plan", "report"
HIDDEN = frozenset({PLAN, REPORT})
"""Kinds of tasks that are no steps of the plan."""


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
    workspace_id: str
    agent_id: str
    message_seq: int | None
    """The message that asked: its integration's tools and ways out are the task's."""
    budget: int | None
    """Millionths of a dollar that it may cost; None for no bound of its own."""
    background: bool
    """Nobody waits for it."""
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
    said = {
        "title": title,
        "instructions": instructions,
        "kind": kind,
        "trust": goal.trust,
        "narrowed": goal.narrowed,
        "asker": goal.asked_by,
        "message_seq": goal.message_seq,
    }
    key = conversation_key(connection, vault, goal.conversation_id)
    place = {"goal_id": goal.id, "call_id": call_id, "number": number, "needs": list(needs)}
    return str(_insert(connection, key, goal, said, **place).id)


def _insert(connection: Connection, key: DataKey, of: Any, said: Mapping[str, Any], **place: Any) -> Any:
    """Make a task's row, and tell of it. `of` is the goal or the run that wants it."""
    task_id = new_id("task")
    new = {
        "id": task_id,
        "workspace_id": of.workspace_id,
        "conversation_id": of.conversation_id,
        "agent_id": of.agent_id,
        "kind": said["kind"],
        "state": "queued",
        "sealed": seal(key, said, "task", task_id),
        "tries": 0,
        "cost": 0,
        "reason": "",
        **place,
    }
    row = fast_sql.first(connection, _INSERT, new)
    record_task(connection, row)
    return row


_INSERT = tasks.insert().values(created_at=now()).returning(*tasks.c)


def start_task(connection: Connection, task_id: str, *, parent: Claim) -> int:
    """Make the job of a task's next try, once; returns the job's id."""
    row = find_task(connection, task_id)
    # Its own agent does it: the goal's job may have had another when it was claimed.
    made = submit_child(connection, parent._replace(agent_id=row.agent_id), _job_of(row))
    if row.kind not in HIDDEN:
        count_tasks(connection, row.agent_id, accepted=1)
    return made


MAX_ATTEMPTS = 20
"""Tries of a task's job; most are lost with a process, and go on where that one was."""


def find_task(connection: Connection, task_id: str) -> Any:
    """A task's row; raises NotFound."""
    row = fast_sql.first(connection, _TASK, {"task": task_id})
    if row is None:
        raise NotFound(f"There is no task {task_id[:40]!r}.")
    return row


_TASK = select(tasks).where(tasks.c.id == bindparam("task"))


def tasks_of_goal(connection: Connection, vault: Vault, goal_id: str) -> list[TaskRecord]:
    """The tasks of a goal in their order; raises NotFound when their conversation is purged."""
    rows = fast_sql.fetch(connection, _OF_GOAL, {"goal": goal_id})
    if not rows:
        return []
    key = conversation_key(connection, vault, rows[0].conversation_id)
    return [opened(key, row) for row in rows]


_OF_GOAL = (
    select(tasks)
    .where(tasks.c.goal_id == bindparam("goal"))
    .order_by(tasks.c.number, tasks.c.created_at, tasks.c.id)
)


def lost_tasks(connection: Connection, goal_id: str) -> list[tuple[str, str]]:
    """The tasks of a goal that are not over although their job is, or is gone: which, and how the job ended."""
    rows = fast_sql.fetch(connection, _LOST, {"goal": goal_id})
    return [(row.id, row.state or "gone") for row in rows]


_LOST = (
    select(tasks.c.id, jobs.c.state)
    .outerjoin(jobs, jobs.c.id == tasks.c.job_id)
    .where(tasks.c.goal_id == bindparam("goal"), tasks.c.finished_at.is_(None), tasks.c.job_id.is_not(None))
    .where(jobs.c.id.is_(None) | in_state(*FINAL))
    .order_by(tasks.c.number, tasks.c.created_at, tasks.c.id)
)


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
        workspace_id=row.workspace_id,
        agent_id=row.agent_id,
        message_seq=said.get("message_seq"),
        budget=said.get("budget"),
        background=bool(said.get("background", False)),
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
        _change(connection, task_id, "started_at", state="running")


def finish_task(
    connection: Connection,
    vault: Vault,
    task_id: str,
    state: str,
    result: Mapping[str, Any],
    *,
    reason: str = "",
    cost: float = 0,
) -> None:
    """End a task with what came of it; nothing when it has ended already."""
    row = find_task(connection, task_id)
    key = conversation_key(connection, vault, row.conversation_id)
    sealed = seal(key, dict(result), "task.result", task_id)
    _change(connection, task_id, state=state, result=sealed, reason=reason, cost=cost)


def drop_task(connection: Connection, task_id: str, reason: str) -> None:
    """Take a task that is not over out of the plan."""
    _change(connection, task_id, state="dropped", reason=reason)


def fail_task(connection: Connection, task_id: str, reason: str) -> None:
    """End a task that came to nothing."""
    _change(connection, task_id, state="failed", reason=reason)


def _change(connection: Connection, task_id: str, at: str = "finished_at", /, **values: Any) -> None:
    """Change a task that is not over, and tell of it. `at` names the time that it is from now on."""
    row = fast_sql.first(connection, _changing(at, tuple(values)), {"task": task_id, **values})
    if row is not None:
        record_task(connection, row)


@cache
def _changing(at: str, names: tuple[str, ...]) -> Any:
    changed = {name: bindparam(name, type_=tasks.c[name].type) for name in names}
    unfinished = (tasks.c.id == bindparam("task")) & tasks.c.finished_at.is_(None)
    return update(tasks).where(unfinished).values({**changed, at: now()}).returning(*tasks.c)


# Tasks that a run delegates.


def load_task(connection: Connection, vault: Vault, task_id: str) -> TaskRecord:
    """A task with its words; raises NotFound when it is gone or purged."""
    row = find_task(connection, task_id)
    return opened(conversation_key(connection, vault, row.conversation_id), row)


def delegate_tasks(
    connection: Connection, vault: Vault, claim: Claim, wanted: Delegated, message_seq: int | None
) -> list[NewJob]:
    """Make the tasks of a call, each once, and say which jobs do them. They get the run's trust, and share what is left
    of its money."""
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)
    key = conversation_key(connection, vault, str(claim.conversation_id))
    known = {row.number: row for row in _of_call(connection, claim.id, wanted.call_id)}
    found = [
        known.get(number) or _delegate(connection, key, claim, wanted, number, task, message_seq)
        for number, task in enumerate(wanted.tasks, 1)
    ]
    if len(known) < len(found):
        count_tasks(connection, str(claim.agent_id), accepted=len(found) - len(known))
    return [_job_of(row) for row in found if row.finished_at is None]


def _delegate(
    connection: Connection,
    key: DataKey,
    claim: Claim,
    wanted: Delegated,
    number: int,
    task: NewTask,
    message_seq: int | None,
) -> Any:
    said = {
        "title": task.title,
        "instructions": task.instructions,
        "kind": task.kind,
        "trust": wanted.trust,
        "narrowed": wanted.narrowed,
        "background": wanted.background,
        "asker": "",
        "message_seq": message_seq,
        "budget": None if wanted.budget is None else wanted.budget // len(wanted.tasks),
    }
    place = {"parent_job_id": claim.id, "call_id": wanted.call_id, "number": number, "needs": []}
    return _insert(connection, key, claim, said, **place)


def _job_of(row: Any) -> NewJob:
    """The job of a task's next try. Execution tasks of a conversation are done one after the other."""
    lane = f"{EXECUTION}:{row.conversation_id}" if row.kind == EXECUTION else f"{TASK}:{row.id}"
    key = f"{TASK}:{row.id}:{row.tries + 1 if row.goal_id else 1}"
    pool = PLANNER if row.kind in HIDDEN else WORKER
    return NewJob(TASK, lane, key, pool, {"task": row.id}, max_attempts=MAX_ATTEMPTS)


def _of_call(connection: Connection, job_id: int, call_id: str) -> list[Any]:
    query = select(tasks).where(tasks.c.parent_job_id == job_id, tasks.c.call_id == call_id)
    return list(connection.execute(query.order_by(tasks.c.number)).all())


class TaskDelegator:
    """Makes the tasks that runs delegate."""

    def __init__(self, database: Database, vault: Vault, most: int) -> None:
        self._database = database
        self._vault = vault
        self._most = most

    def of_run(self, claim: Claim) -> StoreDelegations:
        return StoreDelegations(self._database, self._vault, claim, self._most)

    async def make(self, claim: Claim, wanted: Delegated, message_seq: int) -> Sequence[NewJob]:
        return await self._database.write(
            partial(delegate_tasks, vault=self._vault, claim=claim, wanted=wanted, message_seq=message_seq)
        )


class StoreDelegations:
    """The `Delegations` of a run."""

    def __init__(self, database: Database, vault: Vault, claim: Claim, most: int) -> None:
        self._database = database
        self._vault = vault
        self._claim = claim
        self._most = most
        """Tasks of an agent that may wait."""

    async def refusal(self, count: int) -> str:
        waiting = await self._database.read(partial(waiting_tasks, agent_id=self._claim.agent_id))
        if waiting + count <= self._most:
            return ""
        await self._database.write(partial(count_tasks, agent_id=str(self._claim.agent_id), dropped=count))
        return TOO_MANY.format(waiting=waiting, most=self._most, after=RETRY_AFTER)

    async def results(self, call_id: str) -> TaskResults | None:
        return await self._database.read(
            partial(results_of_call, vault=self._vault, claim=self._claim, call_id=call_id)
        )


RETRY_AFTER = 30
"""Seconds after which somebody whose tasks were refused may ask again."""
TOO_MANY = (
    "{waiting} tasks of this agent wait already, and no more than {most} may. Do it yourself, or try again in "
    "{after} seconds."
)


def waiting_tasks(connection: Connection, agent_id: str | None) -> int:
    """How many tasks of an agent wait for a worker run."""
    query = select(func.count()).where(tasks.c.agent_id == agent_id, WAITS)
    return int(connection.execute(query).scalar_one())


def results_of_call(connection: Connection, vault: Vault, claim: Claim, call_id: str) -> TaskResults | None:
    """What a call's tasks gave, in order, for the model that asked; None while one is not over, or none was made."""
    rows = _of_call(connection, claim.id, call_id)
    if not rows or any(row.finished_at is None for row in rows):
        return None
    key = conversation_key(connection, vault, str(claim.conversation_id))
    found = [opened(key, row) for row in rows]
    return TaskResults(
        "\n\n".join(told(task) for task in found),
        failed=all(task.state != "done" for task in found),
        untrusted=any(bool((task.result or {}).get("narrowed")) for task in found),
        cost=round(sum(task.cost for task in found) * MICROS),
        details={"tasks": [{"id": task.id, "kind": task.kind, "state": task.state} for task in found]},
    )


def told(task: TaskRecord) -> str:
    """A task and what it gave, as a model reads it."""
    state = task.state + (f" ({task.reason})" if task.reason else "")
    lines = [f"Task {task.number}, {task.kind}: {task.title}", f"State: {state}"]
    result = task.result
    if result is None:
        return "\n".join([*lines, "It gave no result."])
    lines.append(f"Summary: {result.get('summary', '')}")
    for name, field in (("Artefacts", "artefacts"), ("Open points", "open_points")):
        listed = result.get(field) or []
        lines += [f"{name}:", *(f"- {one}" for one in listed)] if listed else []
    question = result.get("question")
    return "\n".join([*lines, *([f"It has to be asked: {question}"] if question else [])])
