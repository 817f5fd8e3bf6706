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
from gofer.goals.records import wake_ended
from gofer.jobs import control
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.queue import lock_lane
from gofer.settings import Settings
from gofer.store import events as log_of_events
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import agents, conversations, tasks
from gofer.vault.envelope import Vault

log = structlog.get_logger()
PROLONGED_AFTER = 30.0
"""Seconds after which an agent that is saturated counts as saturated for long."""
LOOK_EVERY = 2.0
EVENT = "worker.saturated"


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


def _kept(row: Any) -> dict[str, Any]:
    blank = {"accepted": 0, "dropped": 0, "saturated_at": None, "prolonged": False, "told": None}
    return {**blank, **(row.load or {})}


def told_loads(connection: Connection, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """The load of agents as it was last told, by name; without those of which nothing was."""
    query = select(agents.c.name, agents.c.load).where(agents.c.name.in_(names), agents.c.load.is_not(None))
    return {row.name: row.load["told"] for row in connection.execute(query) if row.load.get("told")}


def load_of(connection: Connection, agent_id: str, settings: Settings) -> Load:
    """An agent's load as it is now; raises NotFound."""
    row = connection.execute(select(agents, now().label("now")).where(agents.c.id == agent_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such agent. `gofer agents list` shows those there are.")
    return _load(connection, row, settings)


def _load(connection: Connection, row: Any, settings: Settings) -> Load:
    kept = _kept(row)
    waits = tasks.c.job_id.is_not(None) | tasks.c.parent_job_id.is_not(None)
    query = select(
        func.coalesce(func.sum(case(((tasks.c.state == "queued") & waits, 1), else_=0)), 0),
        func.coalesce(func.sum(case((tasks.c.state == "running", 1), else_=0)), 0),
    ).where(tasks.c.agent_id == row.id, tasks.c.finished_at.is_(None))
    queued, active = map(int, connection.execute(query).one())
    full = min(settings.agent_tasks, settings.max_tasks or settings.agent_tasks)
    saturated = (queued > 0 and active >= full) or queued >= settings.task_queue
    since = kept["saturated_at"]
    prolonged = saturated and since is not None and row.now - since >= PROLONGED_AFTER
    total = kept["accepted"] + kept["dropped"]
    return Load(kept["accepted"], kept["dropped"], total, queued, active, saturated, prolonged)


def count_tasks(connection: Connection, agent_id: str, *, accepted: int = 0, dropped: int = 0) -> None:
    """Count tasks that were taken on or refused, in the transaction that does so."""
    row = _locked(connection, agent_id)
    if row is None:
        return
    kept = _kept(row)
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
    if _kept(row)["told"] == asdict(_load(connection, row, settings)) and not about:
        return False
    row = _locked(connection, row.id)
    kept = _kept(row)
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
    """End an agent's saturation: drop the tasks that have not begun, and count anew.

    Whoever wanted them is told that a person dropped them. With `fresh` the conversations they belong to begin with a
    fresh working memory, as after `/new`; everything stays recallable.
    """
    waiting = await database.read(partial(_waiting, agent_id=agent_id))
    for job_id, _ in waiting:
        with contextlib.suppress(Conflict, NotFound):
            await database.write(partial(control.cancel, job_id=job_id, by=by))
    for conversation_id in sorted({each for _, each in waiting}) if fresh else ():
        await database.write(partial(_begin_afresh, conversation_id=conversation_id, by=by))
    about = {"cleared_by": by, "fresh": fresh, "stopped": len(waiting)}
    await database.write(partial(_cleared, agent_id=agent_id, settings=settings, about=about))
    signals.wake(JOBS)
    signals.wake(EVENTS)
    return await database.read(partial(load_of, agent_id=agent_id, settings=settings))


def _waiting(connection: Connection, agent_id: str) -> list[tuple[int, str]]:
    query = select(tasks.c.job_id, tasks.c.conversation_id).where(
        tasks.c.agent_id == agent_id,
        tasks.c.finished_at.is_(None),
        tasks.c.state == "queued",
        tasks.c.job_id.is_not(None),
    )
    return [(int(row.job_id), str(row.conversation_id)) for row in connection.execute(query)]


def _begin_afresh(connection: Connection, conversation_id: str, by: str) -> None:
    lock_conversation(connection, conversation_id)
    last = select(conversations.c.last_seq).where(conversations.c.id == conversation_id)
    control.begin_afresh(connection, conversation_id, int(connection.execute(last).scalar_one()), by=by)


def _cleared(connection: Connection, agent_id: str, settings: Settings, about: Mapping[str, Any]) -> None:
    lock_lane(connection, "worker load")
    _keep(connection, agent_id, {})
    row = connection.execute(select(agents, now().label("now")).where(agents.c.id == agent_id)).one()
    _tell(connection, row, settings, **about)
