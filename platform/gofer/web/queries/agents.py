"""Agents: those the store knows, and what their files say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request

from gofer.app import Platform
from gofer.runs.agent_files import NAME, AgentFiles, default_agent, in_force, texts
from gofer.store.tables import LIVE, agents, in_state, jobs


def agents_directory(platform: Platform) -> Path:
    """Where the agents' files are."""
    return platform.settings.data_dir / "agents"


async def list_agents(platform: Platform) -> dict[str, dict[str, Any]]:
    """Every agent that has a file or a history, by name and sorted by it."""
    stored = await platform.database.read(_stored)
    files = await asyncio.to_thread(AgentFiles(agents_directory(platform)).look)
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


async def agent_texts(platform: Platform, name: str) -> tuple[str, str] | None:
    """An agent's file and its instructions; None when it has no file."""
    path = agents_directory(platform) / f"{name}.toml"
    if not NAME.fullmatch(name) or not path.is_file():
        return None
    return await asyncio.to_thread(texts, path)


@contextlib.asynccontextmanager
async def changing_agents(request: Request) -> AsyncIterator[None]:
    """One at a time changes the files, so that nobody's change falls between a look and a change."""
    async with request.app.state.agents_turn:
        yield
        await request.app.state.platform.agents_changed()
