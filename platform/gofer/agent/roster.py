"""From files to rows: the agents of the data directory and their routes, kept in the store as intake needs them.

While the directory is empty, a fresh install's one agent hears everything, also after the last file is gone. The first
file takes over: agents without a file keep their history and hear nothing new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from sqlalchemy import Connection, delete, insert, or_, select, update

from gofer.agent.agents import Agents, AgentSpec, in_force
from gofer.errors import StoreError
from gofer.store.clock import now
from gofer.store.database import Database
from gofer.store.ids import new_id
from gofer.store.tables import agents, connections, routes

log = structlog.get_logger()

LOOK_EVERY = 2.0
"""Seconds between two looks at files that anybody may edit; what Gofer itself changes is in force at once."""


class Roster:
    """Watches the files and keeps the rows like them."""

    def __init__(self, *, agents: Agents, database: Database, workspace_id: str) -> None:
        self._agents = agents
        self._database = database
        self._workspace_id = workspace_id
        self._seen: tuple[list[AgentSpec], list[str]] | None = None
        self._told: dict[str, str] = {}
        self._turn = asyncio.Lock()

    async def sync(self) -> None:
        """Look at the files once; a file that makes no sense is reported and its last good version stands."""
        # In turn: what one look saw must not be written after what a later one saw.
        async with self._turn:
            await self._sync()

    async def _sync(self) -> None:
        specs = await asyncio.to_thread(self._read)
        # A route may name a connection that is made only later.
        seen = (specs, await self._database.read(_every_connection))
        if seen != self._seen:
            await self._database.write(partial(sync_agents, workspace_id=self._workspace_id, specs=specs))
            log.info("agents.synced", agents=[spec.name for spec in specs])
        self._seen = seen

    async def watch(self) -> None:
        """Keep looking."""
        while True:
            try:
                await self.sync()
            except StoreError as error:
                log.warning("agents.not_synced", error=str(error))
            except Exception:
                log.exception("agents.not_synced")
            await asyncio.sleep(LOOK_EVERY)

    def _read(self) -> list[AgentSpec]:
        found = self._agents.look()
        problems = {name: problem for name, (_, problem) in found.items() if problem}
        for name, problem in problems.items():
            if self._told.get(name) != problem:
                log.error("agent.broken", file=str(self._agents.directory / _file(name)), error=problem)
        self._told = problems
        return in_force(found)


def _file(name: str) -> str:
    return name if "." in name else f"{name}.toml"


def sync_agents(connection: Connection, workspace_id: str, specs: Sequence[AgentSpec]) -> None:
    """Make rows and routes like the files say, and take the routes of every other agent."""
    kept = [_agent(connection, workspace_id, spec) for spec in specs]
    connection.execute(delete(routes).where(routes.c.workspace_id == workspace_id))
    for agent_id, spec in zip(kept, specs, strict=True):
        for route in spec.routes:
            for connection_id in _connections(connection, workspace_id, route.connection):
                connection.execute(
                    insert(routes).values(
                        id=new_id("route"),
                        workspace_id=workspace_id,
                        agent_id=agent_id,
                        connection_id=connection_id,
                        event=route.event,
                        trigger=route.trigger,
                        priority=route.priority,
                    )
                )


def _agent(connection: Connection, workspace_id: str, spec: AgentSpec) -> str:
    here = (agents.c.workspace_id == workspace_id) & (agents.c.name == spec.name)
    values = {"model": spec.model, "max_running": spec.max_running}
    found = connection.execute(select(agents.c.id).where(here)).scalar()
    if found is not None:
        connection.execute(update(agents).where(here).values(**values))
        return str(found)
    agent_id = new_id("agent")
    connection.execute(
        insert(agents).values(
            id=agent_id, workspace_id=workspace_id, name=spec.name, settings={}, created_at=now(), **values
        )
    )
    return agent_id


def _every_connection(connection: Connection) -> list[str]:
    return list(connection.execute(select(connections.c.id).order_by(connections.c.id)).scalars())


def _connections(connection: Connection, workspace_id: str, wanted: str) -> list[str | None]:
    """The connections a route means: all (None), or those with that id, name or integration."""
    if wanted == "*":
        return [None]
    query = select(connections.c.id).where(
        connections.c.workspace_id == workspace_id,
        or_(connections.c.id == wanted, connections.c.name == wanted, connections.c.integration == wanted),
    )
    return list(connection.execute(query).scalars())
