"""What the tests by threat share: one real server on loopback, and a GitHub of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.github_scene import Scene
    from support.web_server import House

# Imported where they are needed: tests of the sandbox alone run as a user who has no platform.


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """On SQLite, with password hashes that take no time."""
    from support.web_server import House, cheap_passwords

    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    with cheap_passwords():
        house = House(folder)
        yield house
        house.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    from support.github_scene import open_scene

    async with open_scene() as made:
        yield made
