"""Opens the database of the settings, migrates it, and seeds a fresh install."""

from __future__ import annotations

import time
from pathlib import Path

import structlog
from sqlalchemy import Connection, insert, select

from gofer.errors import ConfigError
from gofer.settings import Settings
from gofer.store import migrations, row_macs
from gofer.store.backup import copy_database
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import agents, routes, workspaces

log = structlog.get_logger()

FIRST_WORKSPACE = "main"
FIRST_AGENT = "gofer"


def database_for(settings: Settings) -> Database:
    """The database of the settings, not yet opened."""
    path = settings.sqlite_path
    if path is not None:
        return SqliteDatabase(path)
    # SQLAlchemy's asyncio side is a twentieth of the start, which most installations never use.
    from gofer.store.postgres import PostgresDatabase

    return PostgresDatabase(settings.database_url)


async def migrate(database: Database, *, backup_to: Path | None) -> None:
    """Bring the tables to this release's version; an existing SQLite file is copied first."""
    version = await database.read(migrations.current)
    if version == migrations.newest():
        return
    if version is not None and not migrations.known(version):
        if migrations.runs_on(version):
            log.warning("store.newer", version=version, known=migrations.newest())
            return
        raise ConfigError(
            f"The database is at version {version}, which this release does not know: it was upgraded by a newer "
            "one. Install that release again, or restore the backup made before the upgrade: gofer restore."
        )
    if version is not None and backup_to is not None and isinstance(database, SqliteDatabase):
        target = backup_to / f"before-{migrations.newest()}-{time.strftime('%Y%m%d-%H%M%S')}.db"
        await database.read(_copy, source=database.path, target=target)
        log.info("store.backed_up", path=str(target))
    await database.write(_upgrade)
    log.info("store.migrated", from_version=version, to_version=migrations.newest())


def _copy(_: Connection, source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy_database(source, target)


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Two processes may start at once; the second finds the work done.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7301, 0)")
        if migrations.current(connection) == migrations.newest():
            return
    migrations.upgrade(connection)


def seed_workspace(connection: Connection) -> bool:
    """Make the workspace of a fresh install; True when it was made."""
    if connection.execute(select(workspaces.c.id).limit(1)).first() is not None:
        return False
    connection.execute(insert(workspaces).values(id=FIRST_WORKSPACE, name="Main", created_at=now()))
    return True


def seed_agent(connection: Connection) -> None:
    """Make the agent of a fresh install, which hears everything."""
    if connection.execute(select(agents.c.id).limit(1)).first() is not None:
        return
    agent = {"id": new_id("agent"), "workspace_id": FIRST_WORKSPACE, "name": FIRST_AGENT, "model": "auto"}
    row_macs.insert(connection, agents, {**agent, "settings": {}, "created_at": now()})
    route = {"id": new_id("route"), "workspace_id": FIRST_WORKSPACE, "agent_id": agent["id"]}
    row_macs.insert(connection, routes, {**route, "event": "*", "trigger": "any", "priority": 0})
