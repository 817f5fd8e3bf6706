"""Keeps the agents of the data directory and their routes in the store, where intake reads them.

The built-in agent needs no file. Another agent whose file is gone keeps its history and hears nothing new. Routes are
stored in the order in which intake tries them: the most specific first, the default agents last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, delete, or_, select

from gofer.errors import StoreError
from gofer.jobs.ensure import ASLEEP_WHEN_CLOSED
from gofer.runs.agent_files import AgentFiles, AgentSpec, RouteSettings, default_agent, in_force
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import agents, connections, routes

log = structlog.get_logger()

LOOK_EVERY = 2.0
"""Seconds between two looks at files that anybody may edit; what Gofer itself changes is in force at once."""


class AgentSync:
    """Watches the files and updates the rows."""

    def __init__(self, *, agents: AgentFiles, database: Database, workspace_id: str) -> None:
        self._agents = agents
        self._database = database
        self._workspace_id = workspace_id
        self._seen: tuple[list[AgentSpec], list[tuple[str, str | None]]] | None = None
        self._told: dict[str, str] = {}
        self._noted: dict[str, tuple[Any, ...]] = {}
        self._turn = asyncio.Lock()

    async def sync(self) -> None:
        """Read the files once. A file that makes no sense is reported, and its last good version stays in force."""
        # One after the other: an older reading must not be written after a newer one.
        async with self._turn:
            await self._sync()

    async def _sync(self) -> None:
        specs = await asyncio.to_thread(self._read)
        # A route may name a connection that is made only later.
        seen = (specs, await self._database.read(_every_connection))
        if seen != self._seen:
            await self._database.write(sync_agents, workspace_id=self._workspace_id, specs=specs)
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
        specs = in_force(found)
        self._tell_layers(specs)
        return specs

    def _tell_layers(self, specs: Sequence[AgentSpec]) -> None:
        """Log once per change which sections are shadowed, and which layers an agent has nowhere."""
        noted: dict[str, tuple[Any, ...]] = {}
        for spec in specs if self._agents.layered else ():
            conflicts = self._agents.packet(spec).conflicts
            missing = self._agents.layers.missing(spec.name)
            noted[spec.name] = (conflicts, *missing)
            if self._noted.get(spec.name) == noted[spec.name]:
                continue
            for each in conflicts:
                log.warning(
                    "agent.shadowed", agent=spec.name, heading=each.heading[:100], by=each.kept_in,
                    shadowed=each.shadowed_in, see=f"gofer agents show {spec.name}",
                )  # fmt: skip
            if missing:
                log.warning(
                    "agent.layers_missing", agent=spec.name, layers=missing, meaning="they say nothing"
                )
        self._noted = noted


def _file(name: str) -> str:
    return name if "." in name or "/" in name else f"{name}.toml"


def sync_agents(connection: Connection, workspace_id: str, specs: Sequence[AgentSpec]) -> None:
    """Make rows and routes as the files say, and remove the routes of every other agent."""
    found = {spec.name: sync_agent(connection, workspace_id, spec) for spec in specs}
    ids = {name: agent_id for name, agent_id in found.items() if agent_id is not None}
    connection.execute(delete(routes).where(routes.c.workspace_id == workspace_id))
    default = default_agent(specs)
    wanted = [(spec, route) for spec in specs if spec.name in ids for route in spec.routes]
    wanted.sort(key=lambda each: (*_specificity(each[1]), each[0].name != default, each[0].name))
    routed: list[dict[str, Any]] = [
        {
            "agent_id": ids[spec.name],
            "connection_id": connection_id,
            "event": route.event,
            "trigger": route.trigger,
            "priority": route.priority,
            "kind": "also" if route.also else "route",
        }
        for spec, route in wanted
        for connection_id in meant_connections(connection, workspace_id, route.connection)
    ]
    catch_all = {"event": "*", "trigger": "any", "priority": 0, "kind": "default"}
    of_connections = [
        {**catch_all, "agent_id": ids[name], "connection_id": connection_id}
        for connection_id, name in _every_connection(connection)
        if name in ids
    ]
    # A route for everything says less than the agent that somebody chose for one connection.
    made = [
        *(row for row in routed if not _takes_all(row)),
        *of_connections,
        *(row for row in routed if _takes_all(row)),
    ]
    if default in ids:
        made.append({**catch_all, "agent_id": ids[default], "connection_id": None})
    for rank, values in enumerate(made):
        row = {"id": new_id("route"), "workspace_id": workspace_id, "rank": rank, **values}
        row_macs.insert(connection, routes, row)


def _takes_all(row: dict[str, Any]) -> bool:
    return row["connection_id"] is None and row["event"] == "*" and row["trigger"] == "any"


def _specificity(route: RouteSettings) -> tuple[Any, ...]:
    """The order of a route: smaller when it names a connection, an event or a trigger; then by its priority."""
    event = 0 if not route.event.endswith("*") else 1000 - len(route.event)
    return route.connection == "*", event, route.trigger == "any", route.priority


def sync_agent(connection: Connection, workspace_id: str, spec: AgentSpec) -> str | None:
    """The id of an agent whose row says what its file does; None when somebody else wrote the row."""
    here = (agents.c.workspace_id == workspace_id) & (agents.c.name == spec.name)
    asleep = spec.runtime is not None and not spec.external.wake_when_closed
    values: dict[str, Any] = {"model": spec.model, "max_running": spec.max_running}
    values["settings"] = {ASLEEP_WHEN_CLOSED: True} if asleep else {}
    found = connection.execute(select(agents.c.id).where(here)).scalar()
    if found is not None:
        try:
            row_macs.update(connection, agents, here, values)
        except row_macs.RowRefused:
            return None  # told by the alarm; the other agents must not wait for it
        return str(found)
    agent_id = new_id("agent")
    row = {
        "id": agent_id,
        "workspace_id": workspace_id,
        "name": spec.name,
        "created_at": now(),
    }
    row_macs.insert(connection, agents, {**row, **values})
    return agent_id


def _every_connection(connection: Connection) -> list[tuple[str, str | None]]:
    """Every connection's id, and the agent chosen for it."""
    query = select(connections.c.id, connections.c.agent).order_by(connections.c.id)
    return [(row.id, row.agent) for row in connection.execute(query)]


def meant_connections(connection: Connection, workspace_id: str, wanted: str) -> list[str | None]:
    """The connections a route means: all (None), or those with that id, name or integration."""
    if wanted == "*":
        return [None]
    query = select(connections.c.id).where(
        connections.c.workspace_id == workspace_id,
        or_(connections.c.id == wanted, connections.c.name == wanted, connections.c.integration == wanted),
    )
    return list(connection.execute(query).scalars())
