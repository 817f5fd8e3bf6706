"""A real server on loopback for the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gofer.app import Platform, open_app
from gofer.settings import Settings
from support.sqlite_template import with_tables
from support.web_server import REAL_COST, House, cheap_passwords


@pytest.fixture(scope="package", autouse=True)
def real_cost() -> Iterator[dict[str, Any]]:
    """Hashes that take no time, but for the test of what they must cost: it is told what was put aside."""
    with cheap_passwords():
        yield REAL_COST


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One for the module, on SQLite."""
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder)
    yield house
    house.close()


@pytest.fixture
async def platform(data_dir: Path) -> AsyncIterator[Platform]:
    async with open_app(with_tables(Settings(data_dir=data_dir)), roles=frozenset({"web"})) as platform:
        yield platform
