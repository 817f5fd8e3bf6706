"""The stand-in, and Gofer on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gofer.rehearsal.telegram import Telegram
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
async def either(request: pytest.FixtureRequest, telegram: Telegram, tmp_path: Path) -> AsyncIterator[House]:
    """The same on each database."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with open_house(
        telegram, tmp_path / "data", sandbox="unconfined", database_url=url, progress_after=0
    ) as made:
        yield made
