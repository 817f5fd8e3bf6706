"""What can be checked, each finding with the step that fixes it and the page that explains it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import Connection, select

from gofer.agent.models.catalogue import Catalogue
from gofer.agent.prices import load_prices
from gofer.alarms import examined
from gofer.app import Platform
from gofer.connections.health import health_of
from gofer.doctor.environment import LOOPBACK, another_place, look_around, openness, unknown_settings
from gofer.doctor.findings import Finding, Severity, fix_data_dir, found_wrong
from gofer.doctor.model import (
    ask_compatible,
    ask_model,
    ask_providers,
    keys_of,
    look_at_model,
    look_at_providers,
)
from gofer.errors import ConfigError, GoferError, NotFound
from gofer.jobs.maintenance import depth, oldest_ready
from gofer.mcp.settings import McpServerSettings
from gofer.memory.manager import by_rule_lately
from gofer.memory.notes import OFF
from gofer.memory.recall import DAMAGED, EXAMINED_SECONDS, advice
from gofer.releases.lifecycle import last_failure, open_home
from gofer.runs.agent_files import (
    NAME,
    AgentFiles,
    AgentSpec,
    RouteSettings,
    default_agent,
    in_force,
    is_agent_folder,
)
from gofer.runs.agent_sync import meant_connections
from gofer.runs.layers import LAYERS, PEOPLE
from gofer.runs.shells import make_provider
from gofer.runtimes.records import ALIVE, list_runtimes, not_tried_until, state_of
from gofer.runtimes.triggers import fallback_of
from gofer.secrets.key_check import open_canary
from gofer.store import migrations
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.row_macs import find_refused
from gofer.store.tables import api_tokens, connections, master_keys

__all__ = [
    "LOOPBACK",
    "Finding",
    "Severity",
    "another_place",
    "ask_compatible",
    "ask_model",
    "ask_providers",
    "examine",
    "fix_data_dir",
    "found_wrong",
    "look_around",
]


MAX_SKEW = 5.0


async def examine(platform: Platform) -> list[Finding]:
    """Run every check; a check that fails is a finding, too."""
    checks: list[tuple[str, Callable[[Platform], Awaitable[list[Finding]]]]] = [
        ("server", _server),
        ("database", _database),
        ("redis", _redis),
        ("master key", _master_key),
        ("signed rows", _signed_rows),
        ("audit log", _audit_log),
        ("sandbox", _sandbox),
        ("model", look_at_model),
        ("providers", look_at_providers),
        ("agents", look_at_agents),
        ("external agents", _external_agents),
        ("MCP servers", _mcp_servers),
        ("tokens", _tokens),
        ("integrations", _integrations),
        ("connections", _connections),
        ("refused requests", _refused),
        ("memory", _memory),
        ("jobs", _jobs),
        ("releases", _releases),
    ]
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += await check(platform)
        except GoferError as error:
            found.append(found_wrong(name, error))
        except Exception as error:  # noqa: BLE001 - the doctor must finish the round
            found.append(Finding(name, "error", f"The check failed: {type(error).__name__}: {error}."))
    return found


async def _server(platform: Platform) -> list[Finding]:
    if not platform.roles:
        return [Finding("server", "note", "No server is running.", "gofer serve")]
    since = round(time.time() - platform.started_at)
    where = f" at {platform.url}" if platform.url else ""
    line = f"Running{where} for {since} s (pid {os.getpid()}, {', '.join(sorted(platform.roles))})."
    found = [Finding("server", "ok", line), *unknown_settings()]
    return [*found, openness(platform.settings)] if "web" in platform.roles else found


async def _database(platform: Platform) -> list[Finding]:
    begun = time.perf_counter()
    version, clock = await platform.database.read(_version_and_clock)
    took = time.perf_counter() - begun
    kind = "SQLite" if platform.database.dialect == "sqlite" else "Postgres"
    found = []
    newest = migrations.newest()
    if version == newest:
        found.append(
            Finding("database", "ok", f"{kind}, version {version}, answers in {took * 1000:.0f} ms.")
        )
    elif version is not None and migrations.runs_on(version):
        line = f"{kind} is at version {version}, of a later release than this one, which can work with it."
        found.append(Finding("database", "note", line, "Install the later release when you can."))
    else:
        found.append(
            Finding("database", "error", f"{kind} is at version {version}, not {newest}.", "gofer serve")
        )
    return [*found, _clock(clock - time.time())]


def _clock(skew: float) -> Finding:
    if abs(skew) > MAX_SKEW:
        line = f"The database's clock is {abs(skew):.0f} s off ours."
        return Finding("clock", "warning", line, "timedatectl set-ntp true")
    return Finding("clock", "ok", f"Within {MAX_SKEW:.0f} s of the database's.")


def _version_and_clock(connection: Connection) -> tuple[str | None, float]:
    return migrations.current(connection), float(connection.execute(select(now())).scalar_one())


async def _redis(platform: Platform) -> list[Finding]:
    if not platform.settings.redis_url:
        return []
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        async with Redis.from_url(platform.settings.redis_url, socket_connect_timeout=5) as client:
            await client.ping()
    except (RedisError, OSError, ValueError) as error:
        line = f"Redis does not answer ({type(error).__name__}); workers poll instead."
        return [Finding("redis", "warning", line, "Check GOFER_REDIS_URL, or unset it.")]
    return [Finding("redis", "ok", "Redis answers.")]


async def _master_key(platform: Platform) -> list[Finding]:
    active = await platform.database.read(
        lambda connection: connection.execute(select(master_keys.c.id).where(master_keys.c.active)).scalar()
    )
    # Opened, not only compared by name: raises when the key or what it sealed is not what it was.
    await platform.database.read(lambda connection: open_canary(connection, platform.vault))
    ring = platform.vault.ring
    where = str(ring.path) if ring.path else "GOFER_MASTER_KEY"
    if active != ring.active.id:
        line = f"The first key in {where} is not the one in use ({active})."
        return [Finding("master key", "warning", line, "gofer key rotate")]
    found = [Finding("master key", "ok", f"Key {active} from {where} opens the store and its canary.")]
    if ring.path is None and len(ring.ids) > 1:
        line = f"{where} still holds older keys, which nothing needs: {len(ring.ids) - 1}."
        found.append(Finding("old keys", "note", line, f"Drop all but the first from {where}, and restart."))
    return found


MAX_NAMED = 5


async def _signed_rows(platform: Platform) -> list[Finding]:
    refused = await platform.database.read(find_refused, limit=1000)
    if not refused:
        return [Finding("signed rows", "ok", "Every row that decides who may do what is signed.")]
    named = ", ".join(f"{each.table} {each.key}" for each in refused[:MAX_NAMED])
    more = f" and {len(refused) - MAX_NAMED} more" if len(refused) > MAX_NAMED else ""
    line = f"Refused, because somebody else than this release of Gofer wrote them: {named}{more}."
    return [Finding("signed rows", "error", line, "gofer rows list, then: gofer rows accept TABLE KEY")]


async def _audit_log(platform: Platform) -> list[Finding]:
    verdict = await examined(platform)
    if not verdict.problems:
        return [Finding("audit log", "ok", f"Whole: {verdict.entries} entries.")]
    line = f"It is not whole: {verdict.problems[0]}"
    return [Finding("audit log", "error", line, "gofer audit verify; if you know why: gofer audit accept")]


async def _sandbox(platform: Platform) -> list[Finding]:
    provider = make_provider(platform.settings)
    if provider is None:
        line = "Switched off: the agent has no shell."
        return [Finding("sandbox", "note", line, "Unset GOFER_SANDBOX, and restart.")]
    report = await provider.probe()
    line = f"{report.summary}."
    if report.level > 0:
        return [Finding("sandbox", "ok", line)]
    fixes = [feature.fix for feature in report.features if not feature.ok and feature.fix]
    return [Finding("sandbox", "warning", line, fixes[0] if fixes else "")]


async def _memory(platform: Platform) -> list[Finding]:
    wrong = await platform.recall.examine()
    found = await _embeddings(platform)
    if not platform.settings.memory_v1:
        found.append(Finding("memory", "note", OFF, "Unset GOFER_MEMORY_V1, and restart.", "memory.md"))
    for line in await platform.database.read(by_rule_lately):
        found.append(Finding("memory", "note", line, docs="memory.md"))
    if left := platform.recall.not_examined:
        line = f"{left} conversations were not looked at: that takes more than {EXAMINED_SECONDS:.0f} s."
        found.append(Finding("memory", "note", line, docs="memory.md"))
    if not wrong:
        line = "Everything that is remembered can be read and searched."
        if left:
            line = "Everything that was looked at can be read and searched."
        return [Finding("memory", "ok", line, docs="memory.md"), *found]
    lines = [advice(scope, why) for scope, why in sorted(wrong.items())[:10]]
    said = "Agents answer without some memories. " + " ".join(lines)
    damaged = all(why == DAMAGED for why in wrong.values())
    fix = "gofer memory reindex" if damaged else "gofer restore FILE, or as said for each"
    return [Finding("memory", "warning", said, fix, "memory.md"), *found]


async def _embeddings(platform: Platform) -> list[Finding]:
    """What is wrong with the embeddings endpoint, if there is one."""
    settings, made = platform.settings, platform.recall.embeddings
    if bool(settings.embeddings_url) != bool(settings.embeddings_model):
        line = "Embeddings are off: GOFER_EMBEDDINGS_URL and GOFER_EMBEDDINGS_MODEL belong together."
        return [Finding("memory", "warning", line, "Set both, or neither, and restart.", "memory.md")]
    if made is None or not await made.probe():
        return []
    line = f"Memories are searched by words alone: of the embeddings endpoint, {made.problem}."
    return [Finding("memory", "warning", line, "Look at GOFER_EMBEDDINGS_URL.", "memory.md")]


async def _tokens(platform: Platform) -> list[Finding]:
    endless = await platform.database.read(
        lambda connection: list(
            connection.execute(select(api_tokens.c.id).where(api_tokens.c.expires_at.is_(None))).scalars()
        )
    )
    if not endless:
        return []
    line = f"Valid without end: {len(endless)} of the API tokens ({', '.join(endless[:3])}…)."
    if len(endless) <= 3:
        line = f"Valid without end: {', '.join(endless)}."
    fix = "Make one that ends (`gofer tokens add NAME`), then `gofer tokens revoke ID` for the old one."
    return [Finding("tokens", "warning", line, fix, "api.md#tokens")]


async def _integrations(platform: Platform) -> list[Finding]:
    found = [
        Finding(
            "integration",
            "error",
            f"{name} could not be loaded: {why}",
            f"pip uninstall {platform.registry.packages[name]}, or update it.",
        )
        for name, why in sorted(platform.registry.broken.items())
    ]
    names = ", ".join(sorted(platform.registry.integrations)) or "none"
    return [*found, Finding("integrations", "ok", f"Installed: {names}.")]


ELSEWHERE = "integrations/hello.md#in-a-package-of-its-own"
"""Where to read on about an integration that did not come with Gofer."""


async def _connections(platform: Platform) -> list[Finding]:
    ids = await platform.database.read(
        lambda connection: list(
            connection.execute(select(connections.c.id, connections.c.name, connections.c.integration))
        )
    )
    if not ids:
        return [Finding("connections", "note", "There is none yet.", "gofer connections add --help")]
    found = []
    for connection_id, name, integration in ids:
        health = await health_of(platform, connection_id)
        severity: Severity = "ok" if health.ok else "error"
        ours = integration in platform.registry.built_in
        page = f"integrations/{integration}.md#troubleshooting" if ours else ELSEWHERE
        found.append(Finding(f"connection {name}", severity, health.line, health.fix, page))
        if outdated := platform.intake.outdated.get(connection_id):
            found.append(Finding(f"sender of {name}", "warning", outdated, "Change what posts to it.", page))
    return found


async def _refused(platform: Platform) -> list[Finding]:
    recent = [each for each in platform.refusals.recent if each.at > time.time() - 3600]
    if not recent:
        return []
    counts = Counter((each.connection, each.status, each.reason) for each in recent)
    (connection, status, reason), count = counts.most_common(1)[0]
    line = f"{len(recent)} in the last hour; {count} of them {status} at {connection}: {reason}"
    return [Finding("refused requests", "warning", line, "gofer status --refusals")]


async def _jobs(platform: Platform) -> list[Finding]:
    states = await platform.database.read(depth)
    found = []
    if states.get("dead"):
        line = f"Dead jobs: {states['dead']}."
        found.append(Finding("jobs", "warning", line, "gofer jobs list --state dead"))
    oldest = await platform.database.read(oldest_ready)
    if platform.roles and oldest > 60:
        line = f"A job has been ready for {oldest:.0f} s and nobody took it."
        found.append(Finding("jobs", "error", line, "gofer status"))
    return found or [Finding("jobs", "ok", "None is dead or stuck.")]


async def _releases(platform: Platform) -> list[Finding]:
    failure = await asyncio.to_thread(last_failure, open_home(platform.settings))
    if failure is None:
        return []
    if failure["to"] == failure["build"]:
        line = f"{failure['build']} does not work as it should, and there is none to go back to. {failure['reason']}"
        return [Finding("releases", "warning", line, "gofer logs; when that is fixed, start Gofer again")]
    line = f"{failure['build']} was taken back, and {failure['to']} runs again. {failure['reason']}"
    return [Finding("releases", "warning", line, f"gofer update show {failure['build']}, then drop it")]


async def look_at_agents(platform: Platform) -> list[Finding]:
    """A finding for each file with a problem, and for each agent whose model cannot be used."""
    directory = platform.settings.data_dir / "agents"
    seen = await asyncio.to_thread(AgentFiles.of(platform.settings).look)
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    found = [_broken(directory, name, spec, problem) for name, (spec, problem) in seen.items() if problem] + [
        _unset(catalogue, spec, why)
        for spec, _ in seen.values()
        if spec and (why := _missing(catalogue, spec))
    ]
    found += await asyncio.to_thread(_wrong_prices, platform.settings.data_dir / "prices.toml")
    specs = in_force(seen)
    found += _contested(specs)
    found += await platform.database.read(_deaf, specs=specs)
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


async def _external_agents(platform: Platform) -> list[Finding]:
    """External agents that nobody could wake, or for whom nobody stands in."""
    files = AgentFiles.of(platform.settings)
    specs = [spec for spec in in_force(await asyncio.to_thread(files.look)) if spec.runtime is not None]
    if not specs:
        return []
    settings = platform.settings
    states: dict[tuple[str, str], str] = {}
    for row in await platform.database.read(list_runtimes):
        state = state_of(row, settings.runtime_heartbeat)
        if not_tried_until(row, settings.runtime_crashes) is not None:
            state = "not tried, for it crashed too often"
        if states.get((row.agent, row.kind)) not in ALIVE:
            states[row.agent, row.kind] = state
    found = []
    for spec in specs:
        name = f"external agent {spec.name}"
        if spec.external.fallback and await asyncio.to_thread(fallback_of, files, spec) is None:
            what = f"{spec.external.fallback} cannot stand in for {spec.name}: Gofer runs no such agent."
            fix = f"Name one of Gofer's own as external.fallback: gofer agents put {spec.name} FILE"
            found.append(Finding(name, "warning", what, fix, "external-agents.md"))
        known = states.get((spec.name, str(spec.runtime)))
        if known is None:
            fix = f"gofer runtimes add NAME --agent {spec.name} --kind {spec.runtime}"
            found.append(
                Finding(
                    name, "warning", f"No runtime of {spec.name} is registered.", fix, "external-agents.md"
                )
            )
        elif known not in ALIVE:
            fix = "Run its host: gofer runtimes host; gofer runtimes list shows how it is"
            found.append(
                Finding(name, "warning", f"The runtime of {spec.name} is {known}.", fix, "external-agents.md")
            )
    return found or [Finding("external agents", "ok", f"{len(specs)} can be woken.")]


async def _mcp_servers(platform: Platform) -> list[Finding]:
    """What keeps an agent's MCP servers from being used, as far as it can be seen without calling them."""
    seen = await asyncio.to_thread(AgentFiles.of(platform.settings).look)
    servers = [(spec.name, name, each) for spec in in_force(seen) for name, each in spec.mcp.items()]
    found = [
        one for agent, name, each in servers for one in await _server_problems(platform, agent, name, each)
    ]
    if found or not servers:
        return found
    return [Finding("MCP servers", "ok", f"{len(servers)} are set up. Try one: gofer mcp test AGENT SERVER")]


async def _server_problems(
    platform: Platform, agent: str, name: str, settings: McpServerSettings
) -> list[Finding]:
    check, found = f"MCP server {name} of {agent}", []
    for secret in settings.secret_names:
        try:
            await platform.secret(secret)
        except NotFound:
            line = f"There is no secret {secret}."
            found.append(Finding(check, "error", line, f"gofer secrets put {secret}", "mcp.md"))
    if settings.oauth:
        try:
            await platform.secret(settings.kept_as(name, "access"))
        except NotFound:
            fix = f"gofer mcp authorise {agent} {name}"
            found.append(Finding(check, "error", "Nobody has authorised Gofer there.", fix, "mcp.md"))
    if settings.command and platform.servers.provider is None:
        line = "It is a command, and there is no sandbox to run it in."
        found.append(Finding(check, "error", line, "See what is said of the sandbox", "mcp.md"))
    if settings.url.startswith("http://") and settings.secret_names and not _is_here(settings.url):
        line = "Secrets are sent to it without encryption."
        found.append(Finding(check, "warning", line, "Use its https address", "mcp.md"))
    return found


def _is_here(url: str) -> bool:
    return (urlsplit(url).hostname or "") in (*LOOPBACK, "localhost", "127.0.0.1", "::1")


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
        layer = name.rpartition("/")[2].removesuffix(".md") in LAYERS or name.startswith(f"{PEOPLE}/")
        fix = f"Fix {directory / name}" if layer else f"Rename or remove {directory / name}"
        return Finding(f"agent file {name}", "warning", f"{directory / name}: {problem}.", fix, "agents.md")
    path = directory / name if is_agent_folder(directory / name) else directory / f"{name}.toml"
    fix = f"Fix {path}, or: gofer agents put {name} FILE"
    severity: Severity = "error" if spec is None else "warning"
    return Finding(f"agent {name}", severity, f"{path}: {problem}.", fix, "agents.md")


def _missing(catalogue: Catalogue, spec: AgentSpec) -> str:
    """Why its model cannot be used; empty when it can."""
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
