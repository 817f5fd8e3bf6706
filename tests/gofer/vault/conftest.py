"""Real databases with the tables, and the keys of a data directory."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine
from sqlmodel import SQLModel

from gofer.store.database import Database
from gofer.store.postgres import PostgresDatabase
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import workspaces
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring

WORKSPACE = "ws_test"


def make_tables(connection: Connection) -> None:
    SQLModel.metadata.create_all(connection)
    _one_workspace(connection)


def _one_workspace(connection: Connection) -> None:
    connection.execute(workspaces.insert().values(id=WORKSPACE, name="test", created_at=0))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with its tables and one workspace, made once and copied."""
    path = tmp_path_factory.mktemp("empty") / "gofer.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        make_tables(connection)
    engine.dispose()
    return path


@pytest.fixture
def data_dir(tmp_path: Path, empty_database: Path) -> Path:
    tmp_path.chmod(0o700)
    shutil.copy(empty_database, tmp_path / "gofer.db")
    return tmp_path


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Database]:
    """Each database in turn, with its tables and one workspace."""
    database: Database
    if request.param == "sqlite":
        database = SqliteDatabase(data_dir / "gofer.db")
        await database.start()
    else:
        database = PostgresDatabase(request.getfixturevalue("postgres_url"))
        await database.write(_one_workspace)
    yield database
    await database.close()


@pytest.fixture
def vault(data_dir: Path) -> Vault:
    return Vault(open_ring(data_dir, ciphertext_exists=False))
