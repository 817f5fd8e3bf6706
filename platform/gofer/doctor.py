"""What can be checked, each finding with the command that mends it."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, select

from gofer.errors import GoferError
from gofer.health import health_of
from gofer.jobs.upkeep import depth, oldest_ready
from gofer.platform import Platform
from gofer.settings import Settings
from gofer.store import migrations
from gofer.store.clock import now
from gofer.store.tables import connections, master_keys

Severity = Literal["ok", "note", "warning", "error"]

OLDEST_PYTHON = (3, 11)
MOST_SKEW = 5.0
LEAST_DISK = 500 * 1024 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    check: str
    severity: Severity
    line: str
    fix: str = ""
    """The exact command or step that mends it."""


# From outside: what can be seen without opening the store.


def look_around(settings: Settings, *, serving: bool) -> list[Finding]:
    """Everything that can be said before the platform is asked."""
    return [
        _python(),
        _data_dir(settings),
        _disk(settings),
        _port(settings, serving=serving),
        _openness(settings),
    ]


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "error", f"Python {version} is too old.", "Install Python 3.11 or newer.")
    return Finding("python", "ok", f"Python {version}.")


def _data_dir(settings: Settings) -> Finding:
    path = settings.data_dir
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return Finding("data directory", "note", f"{path} is not there yet.", "gofer serve")
    except OSError as error:
        return Finding("data directory", "error", f"{path}: {error.strerror}.", "Set GOFER_DATA_DIR.")
    if not stat.S_ISDIR(found):
        return Finding("data directory", "error", f"{path} is not a directory.", "Set GOFER_DATA_DIR.")
    mode = stat.S_IMODE(found)
    if mode & 0o022:
        return Finding("data directory", "error", f"Others may write to {path}.", f"chmod go-w {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("data directory", "error", f"{path} is not writable.", f"chown $USER {path}")
    if mode & 0o077:
        return Finding("data directory", "note", f"Others may look into {path}.", f"chmod 700 {path}")
    return Finding("data directory", "ok", f"{path}, for this user alone.")


def _disk(settings: Settings) -> Finding:
    path = settings.data_dir
    while not os.path.exists(path):  # unlike Path.exists, it does not raise for a name that is too long
        path = path.parent
    free = shutil.disk_usage(path).free
    line = f"{free / 1024**3:.1f} GiB free."
    if free < LEAST_DISK:
        return Finding("disk", "warning", line, f"Free some space on the file system of {path}.")
    return Finding("disk", "ok", line)


def _port(settings: Settings, *, serving: bool) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if serving or settings.port == 0:
        return Finding("port", "ok", "Asked of the running server below." if serving else "Any free one.")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            return Finding(
                "port", "error", f"{where}: {error.strerror}.", f"GOFER_PORT={settings.port + 1} gofer serve"
            )
    return Finding("port", "ok", f"{where} is free.")


def _openness(settings: Settings) -> Finding:
    if settings.host in LOOPBACK:
        return Finding("network", "ok", f"Listens on {settings.host} alone.")
    return Finding(
        "network",
        "warning",
        f"Listens on {settings.host}, which others can reach.",
        "Unset GOFER_HOST and put a reverse proxy with TLS in front, unless this is a private network.",
    )


# From inside: what an open platform can say.


async def examine(platform: Platform) -> list[Finding]:
    """Ask every part; a part that fails to answer is a finding, too."""
    checks: list[tuple[str, Callable[[Platform], Awaitable[list[Finding]]]]] = [
        ("server", _server),
        ("database", _database),
        ("redis", _redis),
        ("master key", _master_key),
        ("sandbox", _sandbox),
        ("integrations", _integrations),
        ("connections", _connections),
        ("refused requests", _refused),
        ("jobs", _jobs),
    ]
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += await check(platform)
        except GoferError as error:
            found.append(Finding(name, "error", str(error)))
        except Exception as error:  # noqa: BLE001 - the doctor must finish the round
            found.append(Finding(name, "error", f"The check failed: {type(error).__name__}: {error}."))
    return found


async def _server(platform: Platform) -> list[Finding]:
    if not platform.roles:
        return [Finding("server", "note", "No server is running.", "gofer serve")]
    since = round(time.time() - platform.started_at)
    where = f" at {platform.url}" if platform.url else ""
    line = f"Running{where} for {since} s (pid {os.getpid()}, {', '.join(sorted(platform.roles))})."
    return [Finding("server", "ok", line)]


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
    else:
        found.append(
            Finding("database", "error", f"{kind} is at version {version}, not {newest}.", "gofer serve")
        )
    skew = abs(clock - time.time())
    if skew > MOST_SKEW:
        found.append(
            Finding(
                "clock", "warning", f"The database's clock is {skew:.0f} s off ours.", "timedatectl status"
            )
        )
    return found


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
    ring = platform.vault.ring
    where = str(ring.path) if ring.path else "GOFER_MASTER_KEY"
    if active != ring.active.id:
        line = f"The first key in {where} is not the one in use ({active})."
        return [Finding("master key", "warning", line, "gofer key rotate")]
    found = [Finding("master key", "ok", f"Key {active} from {where} opens the store.")]
    if ring.path is None and len(ring.ids) > 1:
        line = f"{where} still holds {len(ring.ids) - 1} older key(s)."
        found.append(Finding("old keys", "note", line, f"Drop all but the first from {where}, and restart."))
    return found


async def _sandbox(platform: Platform) -> list[Finding]:
    module: Any = importlib.import_module("gofer_sandbox")
    if not hasattr(module, "Bubblewrap"):
        return []
    report = await module.Bubblewrap().probe()
    line = f"{report.provider}: {report.level.words}."
    if report.level > 0:
        return [Finding("sandbox", "ok", line)]
    fixes = [feature.fix for feature in report.features if not feature.ok and feature.fix]
    return [Finding("sandbox", "warning", line, fixes[0] if fixes else "")]


async def _integrations(platform: Platform) -> list[Finding]:
    found = [
        Finding(
            "integration",
            "error",
            f"{name} could not be loaded: {why}",
            f"pip uninstall {name}, or update it.",
        )
        for name, why in sorted(platform.registry.broken.items())
    ]
    names = ", ".join(sorted(platform.registry.integrations)) or "none"
    return [*found, Finding("integrations", "ok", f"Installed: {names}.")]


async def _connections(platform: Platform) -> list[Finding]:
    ids = await platform.database.read(
        lambda connection: list(connection.execute(select(connections.c.id, connections.c.name)))
    )
    if not ids:
        return [Finding("connections", "note", "There is none yet.", "gofer connections add --help")]
    found = []
    for connection_id, name in ids:
        health = await health_of(platform, connection_id)
        severity: Severity = "ok" if health.ok else "error"
        found.append(Finding(f"connection {name}", severity, health.line, health.fix))
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
        line = f"{states['dead']} dead job(s)."
        found.append(Finding("jobs", "warning", line, "gofer jobs list --state dead"))
    oldest = await platform.database.read(oldest_ready)
    if platform.roles and oldest > 60:
        line = f"A job has been ready for {oldest:.0f} s and nobody took it."
        found.append(Finding("jobs", "error", line, "gofer status"))
    return found or [Finding("jobs", "ok", "None is dead or stuck.")]
