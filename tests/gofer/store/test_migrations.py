"""Migrations: the same tables as the classes say, on both databases, and an upgrade with live rows in them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, insert, select, text
from sqlmodel import SQLModel

from gofer.errors import ConfigError
from gofer.settings import Settings
from gofer.store import migrations
from gofer.store.bootstrap import database_for, migrate
from gofer.store.database import Database
from gofer.store.tables import agents, jobs, messages
from gofer.vault.envelope import Vault
from support.world import World


@pytest.fixture(params=["sqlite", "postgresql"])
async def blank(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Database]:
    """A database without tables."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("blank_postgres_url")
    database = database_for(Settings(data_dir=data_dir, database_url=url))
    await database.start()
    yield database
    await database.close()


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    return list(compare_metadata(context, SQLModel.metadata))


async def test_migrations_make_exactly_the_tables_of_the_classes(database: Database) -> None:
    assert await database.read(differences) == []


async def test_a_fresh_database_is_brought_up_to_date_once(blank: Database) -> None:
    assert await blank.read(migrations.current) is None
    await migrate(blank, backup_to=None)
    await migrate(blank, backup_to=None)
    assert await blank.read(migrations.current) == migrations.newest()


async def test_processes_that_start_together_migrate_once(blank: Database) -> None:
    await asyncio.gather(*(migrate(blank, backup_to=None) for _ in range(4)))
    assert await blank.read(differences) == []


def set_version(connection: Connection, version: str) -> None:
    connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


async def test_the_previous_release_runs_on_a_migrated_database_and_an_older_one_is_refused(
    blank: Database,
) -> None:
    await migrate(blank, backup_to=None)
    number = migrations.newest()[:4]
    for version, runs in (
        (f"9999-{number}", True),
        ("9999-0001", True),
        ("9999-9998", False),
        ("9999", False),
    ):
        await blank.write(partial(set_version, version=version))
        if runs:
            await migrate(blank, backup_to=None)
        else:
            with pytest.raises(ConfigError, match=r"9999.*newer.*gofer restore"):
                await migrate(blank, backup_to=None)
        assert await blank.read(migrations.current) == version


def test_each_version_says_which_releases_can_work_with_it() -> None:
    folder = Path(migrations.__file__).parent / "versions"
    names = [
        re.search(r'^revision = "(.*)"$', each.read_text(), re.M) for each in sorted(folder.glob("0*.py"))
    ]
    for name in [found[1] for found in names if found]:
        assert name <= "0004" or re.fullmatch(r"\d{4}_\d{4}", name)


def back_to_the_first_release(connection: Connection) -> None:
    """The same rows in the tables of the first release, without what later ones added."""
    now = MetaData()
    now.reflect(connection)
    kept = {table.name: connection.execute(select(table)).mappings().all() for table in now.sorted_tables}
    now.drop_all(connection)
    migrations.upgrade(connection, "0001")
    then = MetaData()
    then.reflect(connection)
    for table in then.sorted_tables:
        if table.name == "alembic_version":
            continue
        for row in kept[table.name]:
            connection.execute(insert(table).values({each.name: row[each.name] for each in table.columns}))
        if connection.dialect.name == "postgresql" and "id" in table.columns:
            last = f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), 1000)"
            connection.execute(text(last))


async def test_an_upgrade_keeps_live_rows_and_work_goes_on(
    blank: Database, vault: Vault, tmp_path: Path
) -> None:
    """The first release's tables with a job in mid-run, brought to this release's."""
    await migrate(blank, backup_to=None)
    world = await World.made(blank, vault)
    await world.say("hello")
    claim = await world.claim_one()
    await blank.write(back_to_the_first_release)
    await migrate(blank, backup_to=tmp_path / "backups")
    assert await blank.read(differences) == []
    await world.end(claim)
    counted = [await world.count(table) for table in (agents, jobs, messages)]
    assert counted == [1, 1, 1]
    assert (await world.rows(select(jobs.c.state)))[0][0] == "done"
