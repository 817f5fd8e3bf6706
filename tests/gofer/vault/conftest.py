"""A real SQLite file with the tables, and the keys of a data directory."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlmodel import SQLModel

from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import workspaces
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring

WORKSPACE = "ws_test"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with its tables and one workspace, made once and copied."""
    path = tmp_path_factory.mktemp("empty") / "gofer.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        SQLModel.metadata.create_all(connection)
        connection.execute(workspaces.insert().values(id=WORKSPACE, name="test", created_at=0))
    engine.dispose()
    return path


@pytest.fixture
def data_dir(tmp_path: Path, empty_database: Path) -> Path:
    tmp_path.chmod(0o700)
    shutil.copy(empty_database, tmp_path / "gofer.db")
    return tmp_path


@pytest.fixture
async def database(data_dir: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(data_dir / "gofer.db")
    await database.start()
    yield database
    await database.close()


@pytest.fixture
def vault(data_dir: Path) -> Vault:
    return Vault(open_ring(data_dir, ciphertext_exists=False))
