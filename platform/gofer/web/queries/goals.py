"""Goals as people see them: lists, one with its tasks, and what is done to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, tuple_
from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Forbidden, GoferError, NotFound
from gofer.goals import records
from gofer.goals.requests import UNHEARD, make_goal
from gofer.goals.tasks import TaskRecord, tasks_of_goal
from gofer.intake.admit import read_one
from gofer.integration import Incoming
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust, agents, goals, tasks
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, actor, open_to, visitor_of
from gofer.web.queries import platform_of
from gofer.web.queries.conversations import find_conversation
from gofer.web.queries.jobs import wake
from gofer.web.queries.questions import answering_trust

VERBS = {"pause": records.pause, "resume": records.resume, "cancel": records.cancel}
MAX_EACH = 30
"""Goals of each state on the board."""
TRUST = {"owner": Trust.OWNER, "operator": Trust.MEMBER}
_TASKS = (
    select(func.count())
    .where(tasks.c.goal_id == goals.c.id, tasks.c.number > 0, tasks.c.state != "dropped")
    .correlate(goals)
)
_GOALS = (
    select(
        goals,
        agents.c.name.label("agent"),
        _TASKS.scalar_subquery().label("task_count"),
        _TASKS.where(tasks.c.state == "done").scalar_subquery().label("tasks_done"),
    )
    .outerjoin(agents, agents.c.id == goals.c.agent_id)
    .order_by(goals.c.created_at.desc(), goals.c.id.desc())
)


def list_goals(
    connection: Connection,
    vault: Vault,
    *,
    state: str = "",
    conversation_id: str = "",
    visitor: Visitor | None = None,
    cursor: str = "",
    limit: int,
) -> list[dict[str, Any]]:
    """Those that somebody may read, the newest first, from after the goal `cursor` on; for an agent, its own."""
    query = _GOALS.where(_open_to(connection, visitor)).limit(limit)
    if state:
        query = query.where(goals.c.state == state)
    if conversation_id:
        query = query.where(goals.c.conversation_id == conversation_id)
    if cursor:
        last = records.find_goal(connection, cursor)
        query = query.where(tuple_(goals.c.created_at, goals.c.id) < tuple_(last.created_at, last.id))
    return [_described(connection, vault, row) for row in connection.execute(query).all()]


def _open_to(connection: Connection, visitor: Visitor | None) -> ColumnElement[bool]:
    if visitor is not None and visitor.agent:
        return agents.c.name == visitor.agent
    return open_to(connection, visitor, goals.c.conversation_id)


def board(
    connection: Connection, vault: Vault, visitor: Visitor
) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """By state: how many goals there are that somebody may read, and the newest of them."""
    counted = select(goals.c.state, func.count()).where(_open_to(connection, visitor)).group_by(goals.c.state)
    counts = {str(state): int(count) for state, count in connection.execute(counted)}
    return {
        state: (counts[state], list_goals(connection, vault, state=state, visitor=visitor, limit=MAX_EACH))
        for state in records.STATES
        if state in counts
    }


def under_way(connection: Connection, vault: Vault, visitor: Visitor, limit: int) -> list[dict[str, Any]]:
    """The newest goals that are not over and that somebody may read."""
    query = _GOALS.where(goals.c.finished_at.is_(None), _open_to(connection, visitor)).limit(limit)
    return [_described(connection, vault, row) for row in connection.execute(query).all()]


def show_goal(
    connection: Connection, vault: Vault, goal_id: str, visitor: Visitor | None = None
) -> dict[str, Any]:
    """One goal with its tasks, runs and what was said about it; raises NotFound, also where they may not read it."""
    query = _GOALS.where(goals.c.id == goal_id, _open_to(connection, visitor))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"There is no goal {goal_id[:40]!r}. `gofer goals list` shows those there are.")
    find_conversation(connection, row.conversation_id, visitor)
    found = _described(connection, vault, row)
    if row.sealed is None:
        return {**found, "tasks": [], "words": [], "reply": ""}
    made = tasks_of_goal(connection, vault, goal_id)
    plans = [task for task in made if task.kind == "plan" and task.reason == "applied"]
    reply = str(((plans[-1].result or {}).get("plan") or {}).get("reply") or "") if plans else ""
    words = records.words_about(connection, vault, row)
    said = [{"by": word.by, "trust": word.trust, "text": word.text} for word in words]
    return {**found, "tasks": [_task(task) for task in made], "words": said, "reply": reply}


def _described(connection: Connection, vault: Vault, row: Any) -> dict[str, Any]:
    """A goal for people. The words of one that somebody else wrote, or that is purged, are left out."""
    text, name = "", ""
    try:
        row_macs.require(connection, goals, row)
        asked = records.request_of(connection, vault, row)
        text, name = asked.text, asked.name
    except GoferError:
        pass
    plain = (
        "id", "state", "reason", "conversation_id", "connection_id", "message_seq", "replans", "job_id", "narrowed",
        "needs_approval", "created_at", "changed_at", "finished_at", "until", "tasks_done", "task_count",
    )  # fmt: skip
    return {
        **{each: getattr(row, each) for each in plain},
        "text": text,
        "agent": row.agent or "",
        "asked_by": name or row.asked_by,
        "spent": row.spent / 1e6,
        "budget": None if row.budget is None else row.budget / 1e6,
    }


def _task(task: TaskRecord) -> dict[str, Any]:
    result = task.result or {}
    return {
        "id": task.id,
        "number": task.number,
        "kind": task.kind,
        "state": task.state,
        "reason": task.reason,
        "title": task.title,
        "needs": list(task.needs) if task.kind not in ("plan", "report") else [],
        "summary": str(result.get("summary") or ""),
        "open_points": [str(each) for each in result.get("open_points") or ()],
        "question": str(result.get("question") or ""),
        "job_id": task.job_id,
        "tries": task.tries,
        "cost": task.cost,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
    }


def add_goal(
    connection: Connection,
    platform: Platform,
    visitor: Visitor,
    conversation_id: str,
    seq: int,
    text: str,
    dollars: float | None,
    hours: float | None,
    approval: bool | None,
    elsewhere: Collection[str],
) -> str:
    """Make the goal that a message of the web chat asks for, unless the command has made it; returns its id. Raises
    TooOften when there are too many."""
    if visitor.role not in TRUST:
        raise Forbidden("Only owners and operators can give goals.")
    read = read_one(connection, platform.vault, conversation_id, seq)
    if read is None:
        raise NotFound("The message that asked for it is gone.")
    message: Incoming = read.message
    goal_id = make_goal(
        connection,
        platform.vault,
        platform.settings,
        StoredMessage(seq, message, TRUST[visitor.role], read.connection_id),
        text,
        workspace_id=FIRST_WORKSPACE,
        conversation_id=conversation_id,
        elsewhere=elsewhere,
    )
    if not goal_id:
        raise NotFound(UNHEARD)
    bounds: dict[str, Any] = {} if dollars is None else {"budget": round(dollars * 1e6)}
    bounds |= {} if hours is None else {"until": now() + 3600 * hours}
    bounds |= {} if approval is None else {"needs_approval": approval or platform.settings.goal_approval}
    if bounds:
        row_macs.update(connection, goals, goals.c.id == goal_id, bounds)
    return goal_id


async def steer_goal(
    platform: Platform, verb: str, goal_id: str, *, by: str, visitor: Visitor | None = None
) -> str:
    """Pause, resume or cancel a goal; returns its state then."""
    await platform.database.read(show_goal, vault=platform.vault, goal_id=goal_id, visitor=visitor)
    state = await platform.database.write(VERBS[verb], goal_id=goal_id, by=by)
    wake(platform)
    return state


async def tell_goal(request: Request, goal_id: str, text: str) -> str:
    """Say something about a goal in the name of whoever asks; returns what became of it. Raises NotFound, also where
    they may not read it."""
    platform, visitor = platform_of(request), visitor_of(request)
    await platform.database.read(show_goal, vault=platform.vault, goal_id=goal_id, visitor=visitor)
    said = {"by": actor(request), "name": visitor.name, "trust": answering_trust(request)}
    told = await platform.database.write(
        records.tell, vault=platform.vault, goal_id=goal_id, text=text, **said
    )
    wake(platform)
    return told
