"""What every test may ask for: a clean database of each kind, its URL, keys, and a world to act in.

A plugin of the processes that run tests (`conftest.py`): it loads most of Gofer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gofer.settings import Settings
from gofer.store.bootstrap import database_for
from gofer.store.database import Database
from gofer.store.postgres import PATIENCE, PostgresDatabase
from gofer.vault.envelope import Vault
from support.async_bridge import Elsewhere
from support.database_reset import Broom
from support.patience import eventually, patience
from support.process_speed import (
    log_plainly,
    new_loop,
    share_compiled_statements,
    share_compiled_templates,
    share_entry_points,
    share_tls_defaults,
)
from support.servers import Server, shared, turn
from support.sqlite_template import bring_up_to_date, furnish, vault_in, with_tables
from support.world import World

TEMPLATE = "gofer_template"


def pytest_configure() -> None:
    share_compiled_statements()
    share_compiled_templates()
    share_tls_defaults()
    share_entry_points()
    log_plainly()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `gofer serve` has."""
    return {"as served": new_loop}


async def _on_server(server: Server, name: str, *statements: str) -> None:
    connection = await asyncpg.connect(server.postgres_url(name))
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture(scope="session")
def run_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    """For fixtures that are not async: runs async work, whatever loop the test has."""
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.close()


@pytest.fixture(scope="session")
def postgres(run_dir: Path, elsewhere: Elsewhere) -> Iterator[Server]:
    """One PostgreSQL for the whole run, with a migrated template in it."""
    with turn(run_dir):
        server, fresh = shared("postgres", run_dir)
        if fresh:
            elsewhere.run(_on_server(server, "postgres", f"CREATE DATABASE {TEMPLATE}"))
            elsewhere.run(bring_up_to_date(server.postgres_url(TEMPLATE), run_dir))
    yield server
    server.leave()


@pytest.fixture(scope="session")
def _broom(
    postgres: Server, request: pytest.FixtureRequest, run_dir: Path, elsewhere: Elsewhere
) -> Iterator[Broom]:
    name = f"gofer_{getattr(request.config, 'workerinput', {}).get('workerid', 'main')}"
    with turn(run_dir):  # a template must not be in use while it is copied
        elsewhere.run(_on_server(postgres, "postgres", f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}"))
    broom = Broom(postgres.postgres_url(name))
    yield broom
    elsewhere.run(broom.close())


@pytest.fixture
def _furnished(request: pytest.FixtureRequest) -> bool:
    """Whether the test's store holds the world, which is copied: to make it anew takes longer than most tests."""
    return "world" in request.fixturenames


@pytest.fixture
def postgres_url(_broom: Broom, _furnished: bool, data_dir: Path, elsewhere: Elsewhere) -> str:
    """A PostgreSQL database with all tables, and no rows but those of the world."""
    if _furnished:
        elsewhere.run(_broom.furnish(lambda: furnish(_broom.url, data_dir)))
    else:
        elsewhere.run(_broom.sweep())
    return _broom.url


@pytest.fixture
def blank_postgres_url(postgres: Server, postgres_url: str, elsewhere: Elsewhere) -> Iterator[str]:
    """A PostgreSQL database without tables."""
    name = f"{postgres_url.rpartition('/gofer_')[2].partition('?')[0]}_blank"
    elsewhere.run(_on_server(postgres, "postgres", f"CREATE DATABASE {name}"))
    yield postgres.postgres_url(name)
    elsewhere.run(_on_server(postgres, "postgres", f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory as Gofer would make it."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def sqlite_url(_furnished: bool, data_dir: Path) -> str:
    """A SQLite file with all tables, and no rows but those of the world."""
    return f"sqlite:///{with_tables(Settings(data_dir=data_dir), furnished=_furnished).sqlite_path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """What `GOFER_DATABASE_URL` would be: each test that asks for it runs on both databases."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
async def database(database_url: str, data_dir: Path) -> AsyncIterator[Database]:
    """An open store, empty but for its tables, on both databases."""
    settings = Settings(data_dir=data_dir, database_url=database_url)
    on_postgres = settings.sqlite_path is None
    # On a busy machine a hundred writers wait longer for one of twenty connections.
    database = (
        PostgresDatabase(database_url, patience=patience(PATIENCE)) if on_postgres else database_for(settings)
    )
    await database.start()
    yield database
    await database.close()


@pytest.fixture
def vault(data_dir: Path) -> Vault:
    """A vault with a master key."""
    return vault_in(data_dir)


@pytest.fixture
async def world(database: Database, vault: Vault) -> World:
    """A furnished store on both databases, and short words for what happens in it."""
    return await World.found(database, vault)


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Awaitable[Any]]:
    return eventually
