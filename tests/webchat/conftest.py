"""One house for a module, with a shell, and its owner in a room of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.web_server import House
from webchat.visiting import Visit


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined")
    yield house
    house.close()


@pytest.fixture(scope="module")
def owner(house: House) -> Visit:
    return Visit(house, house.owner())


@pytest.fixture
def visit(owner: Visit) -> Visit:
    """A room nobody has used."""
    return owner.new_room()
