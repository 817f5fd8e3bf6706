"""The agents: whether their files make sense, and whether the models they name can be had."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gofer.agent.agents import NAME, Agents, AgentSpec
from gofer.agent.models.catalogue import Catalogue
from gofer.doctor.finding import Finding, Severity
from gofer.doctor.model import keys_of
from gofer.errors import ConfigError
from gofer.platform import Platform
from gofer.store.open import FIRST_AGENT, FIRST_WORKSPACE


async def look_at_agents(platform: Platform) -> list[Finding]:
    """A finding for each file with a problem, and for each agent whose model cannot be had."""
    directory = platform.settings.data_dir / "agents"
    seen = await asyncio.to_thread(Agents(directory).look)
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    found = [_broken(directory, name, spec, problem) for name, (spec, problem) in seen.items() if problem] + [
        _unset(spec, why) for spec, _ in seen.values() if spec and (why := _missing(catalogue, spec))
    ]
    if found:
        return found
    if not seen:
        return [Finding("agents", "ok", "Files: none; the built-in one answers.")]
    silent = "" if FIRST_AGENT in seen else f" The built-in {FIRST_AGENT} has none, so it hears nothing."
    return [Finding("agents", "ok", f"Files: {', '.join(seen)}.{silent}")]


def _broken(directory: Path, name: str, spec: AgentSpec | None, problem: str) -> Finding:
    if not NAME.fullmatch(name):
        fix = f"Rename or remove {directory / name}"
        return Finding(f"agent file {name}", "warning", f"{directory / name}: {problem}.", fix, "agents.md")
    path = directory / f"{name}.toml"
    fix = f"Mend {path}, or: gofer agents put {name} FILE"
    severity: Severity = "error" if spec is None else "warning"
    return Finding(f"agent {name}", severity, f"{path}: {problem}.", fix, "agents.md")


def _missing(catalogue: Catalogue, spec: AgentSpec) -> str:
    """Why its model cannot be had; empty when it can."""
    try:
        catalogue.model(spec.model, fallback=spec.fallback)
    except ConfigError as error:
        return str(error)
    return ""


def _unset(spec: AgentSpec, why: str) -> Finding:
    fix = f"gofer secrets put {spec.model.partition('/')[0]}_key, or another model in the agent's file"
    return Finding(f"model of {spec.name}", "error", why, fix, "models.md")
