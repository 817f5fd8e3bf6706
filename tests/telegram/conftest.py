"""The stand-in, and Gofer on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gofer_standins.telegram import Telegram
from telegram.house import House, open_house


@pytest.fixture
async def telegram() -> AsyncIterator[Telegram]:
    async with Telegram(first_retry=0.05) as telegram:
        yield telegram


@pytest.fixture
async def house(telegram: Telegram, tmp_path: Path) -> AsyncIterator[House]:
    """Polling, without a sandbox."""
    async with open_house(telegram, tmp_path / "data") as house:
        yield house


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each database in turn; empty for the default one."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def each_house(telegram: Telegram, tmp_path: Path, database_url: str) -> AsyncIterator[House]:
    """As `house`, on each database."""
    async with open_house(telegram, tmp_path / "data", database_url=database_url) as made:
        yield made


@pytest.fixture
async def either(telegram: Telegram, tmp_path: Path, database_url: str) -> AsyncIterator[House]:
    """On each database, with a shell, and with progress shown at once."""
    async with open_house(
        telegram, tmp_path / "data", sandbox="unconfined", database_url=database_url, progress_after=0
    ) as made:
        yield made
