"""Beats: every so many minutes each agent whose heartbeat is on looks around. A look that finds nothing only reads.

There is no leader and no schedule on record. Every process looks, and what two of them find is put on record once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from sqlalchemy import Connection, select

from gofer.crash import crash_point
from gofer.errors import GoferError
from gofer.heartbeat.findings import Due, HeartbeatWatch, clock, look
from gofer.heartbeat.records import prune_findings, record
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.store.database import Database
from gofer.store.tables import agents

log = structlog.get_logger()
BETWEEN_CHECKS = 20.0
"""Seconds between two looks at the clock."""
PRUNE_EVERY = 86400.0


@dataclass
class Beats:
    """The heartbeats of one process."""

    database: Database
    files: AgentFiles
    signals: Signals
    timezone: str
    now: Callable[[Connection], float] = clock
    _slots: dict[str, int] = field(default_factory=dict)
    """The last period in which each agent looked; a process that starts looks once."""
    _pruned: float = 0.0

    async def keep_beating(self) -> None:
        """Look whenever an agent's time has come, until cancelled."""
        while True:
            try:
                await self.beat()
            except GoferError as error:
                log.warning("heartbeat.not_looked", error=str(error))
            except Exception:
                log.exception("heartbeat.failed")
            await asyncio.sleep(BETWEEN_CHECKS)

    async def beat(self) -> int:
        """Have the agents look whose time has come; returns how many jobs that made."""
        specs = await asyncio.to_thread(self._beating)
        if not specs:
            return 0
        at = await self.database.read(self.now)
        made = 0
        for spec in specs:
            slot = int(at // (60 * spec.heartbeat.every))
            # A period that begins outside of the hours is looked at when they begin, and not missed.
            if self._slots.get(spec.name) != slot and spec.heartbeat.is_time(at, self.timezone):
                self._slots[spec.name] = slot
                made += await self.look(spec, at)
        await self._prune(at)
        return made

    async def look(self, spec: AgentSpec, at: float) -> int:
        """Have one agent look now; returns how many jobs that made."""
        items = (await asyncio.to_thread(self.files.heartbeat_list, spec)).items
        watch = HeartbeatWatch("", spec.name, spec.heartbeat, items, self.timezone, at)
        watch, found = await self.database.read(partial(_look, watch=watch))
        if not found:
            return 0
        made = await self.database.write(partial(record, watch=watch, found=found))
        crash_point("heartbeat.recorded")
        if made:
            self.signals.wake(JOBS)
        self.signals.wake(EVENTS)
        return made

    def _beating(self) -> list[AgentSpec]:
        """The agents whose heartbeat is on. One whose file is gone has none."""
        found = []
        for name in self.files.names():
            try:
                spec = self.files.get(name)
            except GoferError:
                continue  # said where agents are listed
            if spec.heartbeat.enabled:
                found.append(spec)
        return found

    async def _prune(self, at: float) -> None:
        if abs(at - self._pruned) >= PRUNE_EVERY:
            self._pruned = at
            await self.database.write(prune_findings)


def _look(connection: Connection, watch: HeartbeatWatch) -> tuple[HeartbeatWatch, list[Due]]:
    """What an agent finds that is known by its name so far."""
    agent_id = connection.execute(select(agents.c.id).where(agents.c.name == watch.name)).scalar()
    if agent_id is None:
        return watch, []
    watch = replace(watch, agent_id=agent_id)
    return watch, look(connection, watch)
