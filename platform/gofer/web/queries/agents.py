"""Agents: those the store knows, and what their files say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Conflict, NotFound
from gofer.goals.load import clear_load, load_of
from gofer.intake.scheduled_messages import find_agent
from gofer.runs.agent_files import NAME, AgentFiles, AgentSpec, default_agent, in_force
from gofer.runs.agent_writer import AgentTexts, new_agent, texts
from gofer.store.tables import LIVE, agents, in_state, jobs
from gofer.web.queries import platform_of

MAX_PEOPLE = 50
"""People whose own USER files are looked at for conflicts."""


def agents_directory(platform: Platform) -> Path:
    """Where the agents' files are."""
    return platform.settings.data_dir / "agents"


async def list_agents(platform: Platform) -> dict[str, dict[str, Any]]:
    """Every agent that has a file or a history, by name and sorted by it."""
    stored = await platform.database.read(_stored)
    files = await asyncio.to_thread(AgentFiles.of(platform.settings).look)
    specs = in_force(files)
    names, default = {spec.name for spec in specs}, default_agent(specs)
    found = {}
    for name in sorted({*files, *stored, *names}):
        spec, problem = files.get(name, (None, ""))
        model, live = stored.get(name, ("", 0))
        found[name] = {
            "name": name,
            "model": spec.model if spec is not None and spec.model else model,
            "file": name in files,
            "in_force": name in names,
            "problem": problem,
            "default": name == default,
            "spec": None if spec is None else spec.model_dump(mode="json"),
            "live": live,
        }
    return found


def _stored(connection: Connection) -> dict[str, tuple[str, int]]:
    """Each agent's model, and how many jobs it has at work."""
    counted = select(jobs.c.agent_id, func.count()).where(in_state(*LIVE)).group_by(jobs.c.agent_id)
    live = {agent: int(count) for agent, count in connection.execute(counted)}
    found = connection.execute(select(agents.c.id, agents.c.name, agents.c.model))
    return {row.name: (row.model, live.get(row.id, 0)) for row in found}


async def agent_texts(platform: Platform, name: str) -> AgentTexts | None:
    """An agent's own files; None when it has none."""
    paths = AgentFiles.of(platform.settings).paths(name)
    if not NAME.fullmatch(name) or not (paths.folder is not None or paths.settings.is_file()):
        return None
    return await asyncio.to_thread(texts, paths)


def check_layered(platform: Platform) -> None:
    """Raises Conflict while agents have no folders."""
    if not platform.settings.agent_runtime_v1:
        raise Conflict("Agents have no folders while GOFER_AGENT_RUNTIME_V1 is off.")


async def agent_identity(platform: Platform, spec: AgentSpec, *, owner: bool) -> dict[str, Any]:
    """Who an agent is: the layers in force, the sections that are shadowed, and what names the text of it all. What is
    known of single people is for owners."""
    return await asyncio.to_thread(_identity, AgentFiles.of(platform.settings), spec, owner)


def _identity(files: AgentFiles, spec: AgentSpec, owner: bool) -> dict[str, Any]:
    packet = files.packet(spec)
    found = dict.fromkeys(packet.conflicts)
    layers = dict.fromkeys(packet.layers)
    people = files.layers.people(spec.name)[:MAX_PEOPLE] if files.layered and owner else []
    for person in people:
        own = files.packet(spec, person)
        found |= dict.fromkeys(own.conflicts)
        layers |= dict.fromkeys(own.layers)
    return {
        "digest": packet.digest,
        "packet": packet.text,
        "layers": [asdict(layer) for layer in layers],
        "conflicts": [asdict(conflict) for conflict in found],
    }


@contextlib.asynccontextmanager
async def changing_agents(request: Request) -> AsyncIterator[None]:
    """Only one request at a time changes the files, so no change falls between another's check and write."""
    async with request.app.state.agents_turn:
        yield
        await request.app.state.platform.agents_changed()


async def create_agent(request: Request, name: str) -> AgentSpec:
    """Make an agent's folder, with files that explain themselves; raises Conflict."""
    platform = platform_of(request)
    check_layered(platform)
    async with changing_agents(request):
        return await asyncio.to_thread(new_agent, agents_directory(platform), name)


async def worker_load(platform: Platform, name: str) -> dict[str, Any]:
    """What an agent's workers have to do; raises NotFound."""
    agent_id = await platform.database.read(find_agent, name=name)
    found = await platform.database.read(load_of, agent_id=agent_id, settings=platform.settings)
    return asdict(found)


async def clear_worker_load(platform: Platform, name: str, *, by: str, fresh: bool) -> dict[str, Any]:
    """Drop an agent's tasks that wait for a worker, and reset the counts; raises NotFound."""
    agent_id = await platform.database.read(find_agent, name=name)
    return asdict(
        await clear_load(platform.database, platform.signals, platform.settings, agent_id, by=by, fresh=fresh)
    )


def no_agent(name: str) -> NotFound:
    """The error for an agent that is not there."""
    return NotFound(f"There is no agent called {name[:40]!r}. `gofer agents list` shows those there are.")
