"""The agents: whether their files make sense, and whether the models they name can be had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from gofer.agent.agents import NAME, Agents, AgentSpec, RouteSettings, default_agent, in_force
from gofer.agent.models.catalogue import Catalogue
from gofer.agent.prices import load_prices
from gofer.agent.roster import meant_connections
from gofer.doctor.finding import Finding, Severity
from gofer.doctor.model import keys_of
from gofer.errors import ConfigError
from gofer.platform import Platform
from gofer.store.open import FIRST_WORKSPACE


async def look_at_agents(platform: Platform) -> list[Finding]:
    """A finding for each file with a problem, and for each agent whose model cannot be had."""
    directory = platform.settings.data_dir / "agents"
    seen = await asyncio.to_thread(Agents(directory).look)
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    found = [_broken(directory, name, spec, problem) for name, (spec, problem) in seen.items() if problem] + [
        _unset(catalogue, spec, why)
        for spec, _ in seen.values()
        if spec and (why := _missing(catalogue, spec))
    ]
    found += await asyncio.to_thread(_wrong_prices, platform.settings.data_dir / "prices.toml")
    specs = in_force(seen)
    found += _contested(specs)
    found += await platform.database.read(partial(_deaf, specs=specs))
    if found:
        return found
    default = default_agent(specs)
    files = f"Files: {', '.join(seen)}." if seen else "Files: none."
    if default is None:
        what = f"{files} There is no default agent: what fits no route stays unanswered."
        return [
            Finding("agents", "warning", what, "Write `default = true` into an agent's file", "agents.md")
        ]
    return [Finding("agents", "ok", f"{files} {default} answers what fits no route.")]


def _wrong_prices(path: Path) -> list[Finding]:
    """No agent works while nobody knows what a call costs."""
    try:
        load_prices(path)
    except (ConfigError, OSError, ValueError) as error:
        return [Finding("prices", "error", f"No agent works: {error}", f"Fix {path}", "models.md#prices")]
    return []


def _contested(specs: Sequence[AgentSpec]) -> list[Finding]:
    """Two agents that hear exactly the same, of which only one ever answers."""
    default, heard = default_agent(specs), dict[RouteSettings, str]()
    found = []
    for spec in sorted(specs, key=lambda each: (each.name != default, each.name)):
        for route in (each.model_copy(update={"priority": 0}) for each in spec.routes if not each.also):
            if (first := heard.setdefault(route, spec.name)) != spec.name:
                what = (
                    f"{first} and {spec.name} have the same route; one agent answers a message, here {first}."
                )
                fix = f"Give {spec.name} other routes, or `also = true` to have both answer"
                found.append(Finding(f"routes of {spec.name}", "warning", what, fix, "agents.md"))
    return found


def _deaf(connection: Connection, specs: Sequence[AgentSpec]) -> list[Finding]:
    """Routes that hear nothing, since there is no such connection."""
    return [
        Finding(
            f"routes of {spec.name}",
            "warning",
            f"{spec.name} has a route for {route.connection}, and no connection has that id, name or integration.",
            f"gofer connections list shows what there is; then: gofer agents put {spec.name} FILE",
            "agents.md",
        )
        for spec in specs
        for route in spec.routes
        if not meant_connections(connection, FIRST_WORKSPACE, route.connection)
    ]


def _broken(directory: Path, name: str, spec: AgentSpec | None, problem: str) -> Finding:
    if not NAME.fullmatch(name):
        fix = f"Rename or remove {directory / name}"
        return Finding(f"agent file {name}", "warning", f"{directory / name}: {problem}.", fix, "agents.md")
    path = directory / f"{name}.toml"
    fix = f"Fix {path}, or: gofer agents put {name} FILE"
    severity: Severity = "error" if spec is None else "warning"
    return Finding(f"agent {name}", severity, f"{path}: {problem}.", fix, "agents.md")


def _missing(catalogue: Catalogue, spec: AgentSpec) -> str:
    """Why its model cannot be had; empty when it can."""
    try:
        catalogue.model(spec.model, fallback=spec.fallback)
    except ConfigError as error:
        return str(error)
    return ""


def _unset(catalogue: Catalogue, spec: AgentSpec, why: str) -> Finding:
    provider = spec.model.partition("/")[0]
    known = catalogue.providers.get(provider)
    key = known.key_name if known is not None and known.key_name else f"{provider}_key"
    fix = f"gofer secrets put {key}, or another model in the agent's file"
    return Finding(f"model of {spec.name}", "error", why, fix, "models.md")
