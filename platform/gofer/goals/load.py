"""How much a worker has to do: counted from rows, kept on the agent's row, told when it changes.

Nothing of it is in a process's memory, so it survives restarts, and a client that connects again reads the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, case, func, select, update

from gofer.errors import Conflict, NotFound, StoreError
from gofer.goals.records import pause, wake_ended
from gofer.jobs import control
from gofer.jobs.children import record_task
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.queue import lock_lane
from gofer.settings import Settings
from gofer.store import events as log_of_events
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import JobState, agents, conversations, in_state, jobs, tasks
from gofer.vault.envelope import Vault

log = structlog.get_logger()
PROLONGED_AFTER = 30.0
"""Seconds after which an agent that is saturated counts as saturated for long."""
LOOK_EVERY = 2.0
EVENT = "worker.saturated"
WAITS = (
    (tasks.c.state == "queued")
    & (tasks.c.number > 0)  # plans and reports have slots of their own
    & tasks.c.finished_at.is_(None)
    & (tasks.c.job_id.is_not(None) | tasks.c.parent_job_id.is_not(None))
)
"""A task that waits for a worker run."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an agent's workers have to do."""

    accepted: int
    """Tasks that were taken on since it was last cleared."""
    dropped: int
    """Tasks that were refused since then, because too many waited. None is ever cut that was accepted."""
    total: int
    queued: int
    """Tasks that wait for a worker run."""
    active: int
    saturated: bool
    """Tasks wait although as many are worked on as may be, or no more may wait."""
    prolonged_saturation: bool
    """It has been saturated for half a minute."""


def _load_of(row: Any) -> dict[str, Any]:
    blank = {"accepted": 0, "dropped": 0, "saturated_at": None, "prolonged": False, "told": None}
    return {**blank, **(row.load or {})}


def reported_loads(connection: Connection, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """The load that was last reported for each agent, by name; agents without a report are left out."""
    query = select(agents.c.name, agents.c.load).where(agents.c.name.in_(names), agents.c.load.is_not(None))
    return {row.name: row.load["told"] for row in connection.execute(query) if row.load.get("told")}


def load_of(connection: Connection, agent_id: str, settings: Settings) -> Load:
    """An agent's load as it is now; raises NotFound."""
    row = connection.execute(select(agents, now().label("now")).where(agents.c.id == agent_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such agent. `gofer agents list` shows those there are.")
    return _load(connection, row, settings)


def _load(connection: Connection, row: Any, settings: Settings) -> Load:
    kept = _load_of(row)
    queued, active = map(int, connection.execute(_COUNTED, {"agent": row.id}).one())
    full = min(settings.agent_tasks, settings.max_tasks or settings.agent_tasks)
    saturated = (queued > 0 and active >= full) or queued >= settings.task_queue
    since = kept["saturated_at"]
    prolonged = saturated and since is not None and row.now - since >= PROLONGED_AFTER
    total = kept["accepted"] + kept["dropped"]
    return Load(kept["accepted"], kept["dropped"], total, queued, active, saturated, prolonged)


_COUNTED = select(
    func.coalesce(func.sum(case((WAITS, 1), else_=0)), 0),
    func.coalesce(func.sum(case((tasks.c.state == "running", 1), else_=0)), 0),
).where(tasks.c.agent_id == bindparam("agent"), tasks.c.number > 0, tasks.c.finished_at.is_(None))


def count_tasks(connection: Connection, agent_id: str, *, accepted: int = 0, dropped: int = 0) -> None:
    """Count tasks that were taken on or refused, in the transaction that does so."""
    row = _locked(connection, agent_id)
    if row is None:
        return
    kept = _load_of(row)
    kept |= {"accepted": kept["accepted"] + accepted, "dropped": kept["dropped"] + dropped}
    _keep(connection, agent_id, kept)


def _keep(connection: Connection, agent_id: str, kept: Mapping[str, Any]) -> None:
    fast_sql.fetch(connection, _KEEP, {"agent": agent_id, "kept": dict(kept)})


_KEEP = update(agents).where(agents.c.id == bindparam("agent")).values(load=bindparam("kept"))


def _locked(connection: Connection, agent_id: str) -> Any:
    """An agent's name and load, held until the transaction ends: whoever writes the load has read it so, or a count
    would be lost. Rows that refer to the agent can be made meanwhile."""
    return fast_sql.first(connection, _LOCKED, {"agent": agent_id})


_LOCKED = (
    select(agents.c.id, agents.c.name, agents.c.workspace_id, agents.c.load, now().label("now"))
    .where(agents.c.id == bindparam("agent"))
    .with_for_update(key_share=True)
)


def watch_loads(connection: Connection, settings: Settings) -> int:
    """Tell of every agent whose load has changed since it was last told; returns how many."""
    lock_lane(connection, "worker load")
    busy = select(tasks.c.agent_id).where(tasks.c.finished_at.is_(None))
    query = select(agents, now().label("now")).where(agents.c.load.is_not(None) | agents.c.id.in_(busy))
    return sum(_tell(connection, row, settings) for row in connection.execute(query).all())


def _tell(connection: Connection, row: Any, settings: Settings, **about: Any) -> bool:
    if _load_of(row)["told"] == asdict(_load(connection, row, settings)) and not about:
        return False
    row = _locked(connection, row.id)
    kept = _load_of(row)
    since = kept["saturated_at"]
    load = _load(connection, row, settings)
    figures = asdict(load)
    kept["saturated_at"] = (since if since is not None else row.now) if load.saturated else None
    _keep(connection, row.id, {**kept, "prolonged": load.prolonged_saturation, "told": figures})
    facts = {"agent": row.name, **figures, **about}
    log_of_events.record(connection, EVENT, row.workspace_id, data=facts)
    return True


async def keep_watching(database: Database, vault: Vault, signals: Signals, settings: Settings) -> None:
    """Look again and again whether the load of an agent has changed, and whether a goal has to end."""
    while True:
        try:
            if await database.write(partial(watch_loads, settings=settings)):
                signals.wake(EVENTS)
            if await database.write(partial(wake_ended, vault=vault)):
                signals.wake(JOBS)
        except StoreError as error:
            log.warning("load.not_told", error=str(error))
        await asyncio.sleep(LOOK_EVERY)


async def clear_load(
    database: Database, signals: Signals, settings: Settings, agent_id: str, *, by: str, fresh: bool = False
) -> Load:
    """End an agent's saturation: no task waits for a worker run any more, and the counts begin anew.

    Goals whose tasks waited are paused and keep their plans; who resumes one has its tasks done. Tasks that a run has
    delegated are dropped, and the run is told so. With `fresh` the conversations they belong to begin with a fresh
    working memory, as after `/new`; everything stays recallable.
    """
    places = await database.read(partial(_waiting_places, agent_id=agent_id))
    clear = partial(_clear_conversation, agent_id=agent_id, by=by, fresh=fresh)
    cleared = [await database.write(partial(clear, conversation_id=each)) for each in places]
    about = {
        "cleared_by": by,
        "fresh": fresh,
        "stopped": sum(stopped for stopped, _ in cleared),
        "paused_goals": sum(paused for _, paused in cleared),
    }
    await database.write(partial(_cleared, agent_id=agent_id, settings=settings, about=about))
    signals.wake(JOBS)
    signals.wake(EVENTS)
    return await database.read(partial(load_of, agent_id=agent_id, settings=settings))


def _waiting_places(connection: Connection, agent_id: str) -> list[str]:
    query = select(tasks.c.conversation_id).where(tasks.c.agent_id == agent_id, WAITS).distinct()
    return sorted(connection.execute(query).scalars())


def _clear_conversation(
    connection: Connection, agent_id: str, conversation_id: str, by: str, fresh: bool
) -> tuple[int, int]:
    """Let nothing of a conversation wait for a worker run; returns how many tasks did, and how many goals paused."""
    lock_conversation(connection, conversation_id)
    here = (tasks.c.conversation_id == conversation_id) & (tasks.c.agent_id == agent_id)
    # Locked, so that no worker takes one meanwhile. What one has taken just now is not touched.
    unbegun = select(tasks).join(jobs, jobs.c.id == tasks.c.job_id).where(~in_state(JobState.RUNNING))
    waiting = connection.execute(unbegun.where(here, WAITS).with_for_update(of=jobs)).all()
    paused = {row.goal_id for row in waiting if row.goal_id and _paused(connection, row.goal_id, by)}
    for row in waiting:
        if row.goal_id in paused:
            taken_back = update(tasks).where(tasks.c.id == row.id).values(job_id=None).returning(*tasks.c)
            record_task(connection, connection.execute(taken_back).one())
        with contextlib.suppress(Conflict):
            control.cancel(connection, row.job_id, by=by)
    if fresh and waiting:
        _begin_afresh(connection, conversation_id, by)
    return len(waiting), len(paused)


def _paused(connection: Connection, goal_id: str, by: str) -> bool:
    """Pause a goal; False for one that is being cancelled anyway."""
    with contextlib.suppress(Conflict):
        pause(connection, goal_id, by=by)
        return True
    return False


def _begin_afresh(connection: Connection, conversation_id: str, by: str) -> None:
    last = select(conversations.c.last_seq).where(conversations.c.id == conversation_id)
    control.begin_afresh(connection, conversation_id, int(connection.execute(last).scalar_one()), by=by)


def _cleared(connection: Connection, agent_id: str, settings: Settings, about: Mapping[str, Any]) -> None:
    lock_lane(connection, "worker load")
    _keep(connection, agent_id, {})
    row = connection.execute(select(agents, now().label("now")).where(agents.c.id == agent_id)).one()
    _tell(connection, row, settings, **about)
