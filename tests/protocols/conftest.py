"""One house for the protocols, with a shell, its owner's token, and a client that checks every frame by the schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.web_server import House


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, sandbox="unconfined")
    yield house
    house.close()


@pytest.fixture(scope="module")
def token(house: House) -> str:
    return house.token(house.owner())
