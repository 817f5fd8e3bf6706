"""Servers on both databases; one is shared by a whole file of refusals, since refusals change nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.databases import copied
from e2e.door import Door, open_door
from gofer.settings import Settings
from support.both_databases import BOTH, slow_on_postgres

_numbers = itertools.count(1)

# What a flow does to each database, the tests of `gofer/` try; that the whole goes together, one of them shows.
database_url = slow_on_postgres


@pytest.fixture(scope="module", params=BOTH)
def own_url(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[str]:
    """A database for one file of tests: `GOFER_DATABASE_URL`, empty for SQLite in the data directory."""
    if request.param == "sqlite":
        yield ""
        return
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    with copied(request.getfixturevalue("postgres"), run_dir, f"e2e_{worker}_{next(_numbers)}") as url:
        yield url


@pytest.fixture(scope="module")
def own_dir(own_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gofer") / "data"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(own_url: str, own_dir: Path) -> AsyncIterator[Door]:
    """A server without a worker: what it accepts stays where it was put."""
    settings = Settings(data_dir=own_dir, database_url=own_url, max_body=1024 * 1024, body_timeout=1)
    async with open_door(settings, "web", head_timeout=1) as door:
        yield door
