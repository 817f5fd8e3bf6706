"""Agents: the files of the data directory, read and written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import ConfigError, NotFound
from gofer.runs.agent_files import (
    NAME,
    AgentFileError,
    AgentFiles,
    AgentSpec,
    as_toml,
    default_agent,
    in_force,
    put_agent,
    remove_agent,
    texts,
)
from gofer.store.bootstrap import FIRST_AGENT
from gofer.store.tables import agents
from gofer.web.api.http import RequestModel, answered, asked, check_match, etag_of, platform_of, rows


class AgentSource(RequestModel):
    """An agent to write."""

    toml: str = Field(max_length=100_000)
    instructions: str | None = Field(
        default=None,
        max_length=500_000,
        description="Markdown, kept beside the settings; left as it is when not given.",
    )


async def index(request: Request) -> Response:
    """List agents: those the store knows, and what their files say."""
    known = await platform_of(request).database.read(
        lambda connection: rows(connection, select(agents).order_by(agents.c.name))
    )
    looked = await asyncio.to_thread(AgentFiles(_directory(request)).look)
    specs, files = in_force(looked), _told_files(looked)
    heard, default = {spec.name for spec in specs}, default_agent(specs)
    stored = {each["name"]: each for each in known}
    told = [
        {**_told(name, stored.get(name), files.get(name), name in heard), "default": name == default}
        for name in sorted({*files, *stored, *heard})
    ]
    return answered(request, {"agents": told})


async def show(request: Request) -> Response:
    """One agent's files, and what they mean."""
    name = request.path_params["name"]
    path = _directory(request) / f"{name}.toml"
    files = _told_files(await asyncio.to_thread(AgentFiles(path.parent).look))
    if name not in files and name == FIRST_AGENT:
        return answered(request, _built_in(name), etag=etag_of())
    if name not in files or not NAME.fullmatch(name):
        raise NotFound(f"There is no agent called {name[:40]!r}. `gofer agents list` shows those there are.")
    toml, instructions = await asyncio.to_thread(texts, path)
    shown = {"name": name, "toml": toml, "instructions": instructions, **files[name]}
    return answered(request, shown, etag=etag_of(toml, instructions))


def _built_in(name: str) -> dict[str, Any]:
    """An agent without a file: what would be in one that changes nothing."""
    spec = AgentSpec(name=name)
    toml = f"# {name} has no file. This one would change nothing; docs/agents.md has every setting.\n{as_toml(spec)}"
    return {
        "name": name,
        "toml": toml,
        "instructions": "",
        "problem": "",
        "spec": spec.model_dump(mode="json"),
    }


async def put(request: Request) -> Response:
    """Write an agent; it is in force from the next run on."""
    wish = await asked(request, AgentSource)
    name = request.path_params["name"]
    try:
        async with request.app.state.agents_turn:
            await _check(request, name)
            spec = await asyncio.to_thread(put_agent, _directory(request), name, wish.toml, wish.instructions)
            await platform_of(request).agents_changed()
            etag = await _etag(request, name)
    except AgentFileError as error:
        raise ConfigError(f"line {error.line}: {error.message}") from None
    return answered(request, {"name": spec.name, "spec": spec.model_dump(mode="json")}, etag=etag)


async def _check(request: Request, name: str) -> None:
    if "if-match" in request.headers:
        check_match(request, await _etag(request, name))


async def _etag(request: Request, name: str) -> str:
    path = _directory(request) / f"{name}.toml"
    if not NAME.fullmatch(name) or not path.is_file():
        return etag_of()
    return etag_of(*await asyncio.to_thread(texts, path))


async def remove(request: Request) -> Response:
    """Remove an agent's files."""
    name = request.path_params["name"]
    async with request.app.state.agents_turn:
        await _check(request, name)
        await asyncio.to_thread(remove_agent, _directory(request), name)
        await platform_of(request).agents_changed()
    return answered(request, {"name": name})


def _directory(request: Request) -> Path:
    return platform_of(request).settings.data_dir / "agents"


def _told_files(looked: Mapping[str, tuple[AgentSpec | None, str]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"spec": None if spec is None else spec.model_dump(mode="json"), "problem": problem}
        for name, (spec, problem) in looked.items()
    }


def _told(
    name: str, stored: dict[str, Any] | None, file: dict[str, Any] | None, hears: bool
) -> dict[str, Any]:
    spec = (file or {}).get("spec") or {}
    return {
        "name": name,
        "model": spec.get("model") or (stored or {}).get("model", ""),
        "file": file is not None,
        "in_force": hears,
        "problem": (file or {}).get("problem", ""),
    }
