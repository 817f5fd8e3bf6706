"""The instance itself: how it is doing, its key, its backup."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, func, select
from starlette.requests import Request

from gofer import __version__
from gofer.app import Platform
from gofer.doctor import ask_model as doctor_of_models
from gofer.doctor import ask_providers, examine
from gofer.errors import Conflict, Forbidden
from gofer.jobs.maintenance import depth, oldest_ready
from gofer.releases.lifecycle import last_failure, open_home, under_way
from gofer.secrets.rotation import rotate_master_key
from gofer.store.backup import copy_database, copy_files, key_beside
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import connections, conversations, master_keys
from gofer.vault.keyring import KeyRing
from gofer.web.api.http import RequestModel, platform_of
from gofer.web.auth import visitor_of
from gofer.web.queries.instance import list_processes
from gofer.web.queries.service_levels import ServiceLevels


class BackupRequest(RequestModel):
    """What to back up, and where to."""

    path: str = Field(
        pattern=r"^/",
        max_length=1000,
        description="An absolute path; over the network, in the backups folder.",
    )
    with_key: bool = False
    with_shells: bool = Field(default=False, description="Also the files of the shells' workspaces.")


async def status(request: Request) -> dict[str, Any]:
    """Show how the instance is doing."""
    platform = platform_of(request)
    figures = await platform.database.read(_figures)
    home = open_home(platform.settings)
    failure, deploying = await asyncio.to_thread(lambda: (last_failure(home), under_way(home)))
    told = {"build": platform.settings.build, "taken_back": failure, "deploying": deploying}
    return {**_process(platform), **figures, **told}


def _process(platform: Platform) -> dict[str, Any]:
    settings = platform.settings
    return {
        "version": __version__,
        "serving": bool(platform.roles),
        "pid": os.getpid() if platform.roles else None,
        "roles": sorted(platform.roles),
        "url": platform.url or None,
        "public_url": settings.public_url or None,
        "started_at": platform.started_at if platform.roles else None,
        "database": platform.database.dialect,
        "data_dir": str(settings.data_dir),
        "running_here": platform.worker.running if platform.worker else 0,
        "refused": {str(status): count for status, count in platform.refusals.counts.items()},
    }


def _figures(connection: Connection) -> dict[str, Any]:
    return {
        "jobs": depth(connection),
        "oldest_ready_seconds": round(oldest_ready(connection), 3),
        "connections": connection.execute(select(func.count()).select_from(connections)).scalar(),
        "conversations": connection.execute(select(func.count()).select_from(conversations)).scalar(),
        "processes": list_processes(connection),
    }


async def doctor(request: Request) -> dict[str, Any]:
    """Check the instance from inside. `gofer doctor` adds what can be seen from outside."""
    findings = await examine(platform_of(request))
    return {"findings": [dataclasses.asdict(each) for each in findings]}


async def ask_model(request: Request) -> dict[str, Any]:
    """Ask the model one word, which costs a fraction of a cent: whether its key works; and the user's own servers for
    their lists of models."""
    platform = platform_of(request)
    findings = [await doctor_of_models(platform), *await ask_providers(platform)]
    return {"findings": [dataclasses.asdict(each) for each in findings]}


async def levels(request: Request) -> dict[str, Any]:
    """Show service levels: waiting times, queue, failures, recall and the cost of heartbeats."""
    levels: ServiceLevels = request.app.state.levels
    return await levels.read()


async def refusals(request: Request) -> dict[str, Any]:
    """List the last refused requests, newest first."""
    recent = reversed(platform_of(request).refusals.recent)
    return {"refusals": [dataclasses.asdict(each) for each in recent]}


async def integrations(request: Request) -> dict[str, Any]:
    """List the installed integrations, and those that could not be loaded."""
    registry = platform_of(request).registry
    found = [
        {
            "name": name,
            "summary": each.summary,
            "secrets": [dataclasses.asdict(field) for field in each.secrets],
            "settings": each.settings.model_json_schema(),
        }
        for name, each in sorted(registry.integrations.items())
    ]
    return {"integrations": found, "broken": registry.broken}


async def key(request: Request) -> dict[str, Any]:
    """List the master keys by fingerprint."""
    platform = platform_of(request)
    active = await platform.database.read(
        lambda connection: connection.execute(select(master_keys.c.id).where(master_keys.c.active)).scalar()
    )
    ring = platform.vault.ring
    return {"in_use": active, "ring": list(ring.ids), "file": str(ring.path) if ring.path else None}


async def rotate_key(request: Request) -> dict[str, Any]:
    """Wrap everything with a new master key, while serving."""
    platform = platform_of(request)
    done = await rotate_master_key(platform.database, platform.vault)
    return dataclasses.asdict(done)


async def backup(request: Request, body: BackupRequest) -> dict[str, Any]:
    """Copy the database to a file, and the files of agents beside it, while serving."""
    platform = platform_of(request)
    database = platform.database
    if not isinstance(database, SqliteDatabase):
        raise Conflict(
            "The store is Postgres, which has its own tool. Run: "
            'pg_dump --format=custom --file=gofer.dump "$GOFER_DATABASE_URL"'
        )
    target = Path(body.path)
    backups = platform.settings.data_dir / "backups"
    if visitor_of(request).via != "socket" and target.parent != backups:
        # Whoever owns the dashboard need not own the machine's files.
        raise Forbidden(f"Over the network a backup is a file in {backups}.")
    ring = platform.vault.ring
    if body.with_key and ring.path is None:
        raise Conflict("The master key is in GOFER_MASTER_KEY, not in a file. Keep it where it comes from.")
    key_of = _key_of(ring) if body.with_key else None
    copy = partial(_copy, source=database.path, target=target, backups=backups, key_of=key_of)
    size = await database.read(copy)
    files = await asyncio.to_thread(
        copy_files, platform.settings.data_dir, target, with_shells=body.with_shells
    )
    key_file = key_beside(target) if body.with_key else None
    return {
        "path": str(target),
        "bytes": size,
        "key_file": str(key_file) if key_file else None,
        "files": str(files) if files else None,
    }


def _copy(
    _: Connection, source: Path, target: Path, backups: Path, key_of: Callable[[str], str] | None
) -> int:
    if target.parent == backups:
        # Our own folder is made; anybody else's that is not there may be a disk that is not mounted.
        backups.mkdir(mode=0o700, exist_ok=True)
    return copy_database(source, target, key_of)


def _key_of(ring: KeyRing) -> Callable[[str], str]:
    # The ring knows those that a rotation has retired meanwhile, which the file does not.
    return lambda key_id: ring.find(bytes.fromhex(key_id)).export().reveal()
