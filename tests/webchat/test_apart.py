"""Web and worker apart, on Postgres: what happens is shown while it happens, and nothing of it is only there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gofer.assembly import open_platform
from gofer.jobs.signals import PARCELS
from servers import Server
from web_house import House
from webchat.visiting import Visit


@pytest.fixture(params=["postgres", "redis"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        yield ""
        return
    valkey = Server("valkey")
    yield valkey.valkey_url
    valkey.leave()


@contextlib.contextmanager
def apart(tmp_path: Path, **shared: str) -> Iterator[House]:
    """A house with the web, and beside it a platform that only works."""
    for part in ("web", "worker"):
        (tmp_path / part).mkdir(mode=0o700)
    given = {"master_key": base64.b64encode(b"k" * 32).decode(), **shared}
    house = House(tmp_path / "web", roles=("web",), **given)
    settings = house.settings.model_copy(update={"data_dir": tmp_path / "worker", "sandbox": "unconfined"})
    worker = open_platform(settings, roles=frozenset({"worker"}))
    house.run(worker.__aenter__())
    try:
        yield house
    finally:
        house.run(worker.__aexit__(None, None, None))
        house.close()


def test_a_run_in_another_process_is_seen_as_it_goes_and_all_of_it_is_in_the_log(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    with apart(tmp_path, database_url=postgres_url, redis_url=redis_url) as house:
        visit, overheard = Visit(house, house.owner()), Overheard(house, postgres_url)
        with visit.line() as line:
            line.say("$ echo from afar; until [ -e seen ]; do sleep 0.05; done; echo over")
            shown = line.until(lambda: [frame for frame in line.frames if frame["type"] == "output"])
            assert "from afar" in shown[0]["text"]
            assert not line.of("reply")
            line.say("/stop")
            line.until(lambda: line.state == "idle" and line.of("reply"))
            line.say("What can you do?")
            line.answers(2)
            assert [frame for frame in line.frames if frame["type"] == "text"]
            place, seen = line.cursor, set(line.items)
            line.say("$ echo again")
            line.answers(3)
            everything = set(line.items)
        with visit.line(place) as line:
            line.answers()
            assert set(line.items) == everything - seen
        words = overheard.words()
        assert bool(words) != bool(redis_url)
        assert not any("afar" in word for word in words)


class Overheard:
    """What anybody with a connection to the database hears of runs as they go."""

    def __init__(self, house: House, url: str) -> None:
        self._house = house
        self._words: list[str] = []
        self._connection: Any = house.run(self._listen(url))

    async def _listen(self, url: str) -> Any:
        connection = await asyncpg.connect(url)
        await connection.add_listener(PARCELS, lambda *args: self._words.append(str(args[-1])))
        return connection

    def words(self) -> list[str]:
        self._house.run(asyncio.wait_for(self._connection.close(), 10))
        return self._words
