"""Web and worker apart, on Postgres: what happens is shown while it happens, and nothing of it is only there."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from browser.seed_data import KEY, Service, slowly
from gofer.app import open_app
from gofer.jobs.notifications import PARCELS
from gofer_standins.anthropic import Reply, call, calls
from support.servers import Server
from support.web_server import House
from webchat.visiting import Line, Visit


@pytest.fixture(params=["postgres", "redis"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        yield ""
        return
    valkey = Server("valkey")
    yield valkey.valkey_url
    valkey.leave()


WORDS = " ".join(["One word after the other, all of them from afar."] * 12)


def script(request: Mapping[str, Any]) -> Reply:
    """A command that runs until it is stopped, or words that come one by one."""
    if "Speak" not in str(request["messages"][-1]):
        return calls(call("bash", command="echo from afar, and more to come; sleep 600"))
    return slowly(WORDS)


@contextlib.contextmanager
def apart(tmp_path: Path, **shared: str) -> Iterator[House]:
    """A house with the web, and beside it a platform that only works."""
    for part in ("web", "worker"):
        (tmp_path / part).mkdir(mode=0o700)
    service = Service(script)
    given = {
        "master_key": base64.b64encode(b"k" * 32).decode(),
        "anthropic_key": KEY,
        "anthropic_base_url": service.url,
        **shared,
    }
    house = House(tmp_path / "web", roles=("web",), **given)
    settings = house.settings.model_copy(update={"data_dir": tmp_path / "worker", "sandbox": "unconfined"})
    worker = open_app(settings, roles=frozenset({"worker"}))
    house.run(worker.__aenter__())
    try:
        yield house
    finally:
        house.run(worker.__aexit__(None, None, None))
        house.close()
        service.close()


@pytest.mark.slow
def test_a_run_in_another_process_is_seen_as_it_goes_and_all_of_it_is_in_the_log(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    with (
        apart(tmp_path, database_url=postgres_url, redis_url=redis_url) as house,
        overhearing(house, postgres_url) as overheard,
    ):
        visit = Visit(house, house.owner())
        with visit.line() as line:
            line.say("wait")
            line.until(lambda: "from afar" in said(line, "output"))
            assert line.state == "working"
            line.say("/stop")
            line.until(lambda: line.state == "idle" and line.of("reply"))
            place, seen = line.cursor, set(line.items)
            line.say("Speak")
            line.until(lambda: "One word" in said(line, "text"))
            assert line.state == "working"
        # Nobody is there for a moment: what was said until then must come from the other process once more.
        with visit.line(line.cursor) as late:
            late.until(lambda: late.saying)
            assert WORDS.startswith(first := min(late.saying.values()))
            assert first.startswith("One word")
            late.answers()
            assert WORDS.startswith(min(late.saying.values()))
            assert len(min(late.saying.values())) > len(first)
            everything = set(line.items) | set(late.items)
        with visit.line(place) as line:
            line.answers()
            # What was seen may be told anew with what has become of it; nothing else twice, and nothing left out.
            assert set(line.items) - seen == everything - seen
        assert bool(overheard) != bool(redis_url)
        assert not any("afar" in word for word in overheard)


def said(line: Line, kind: str) -> str:
    return "".join(frame["text"] for frame in line.frames if frame["type"] == kind)


@contextlib.contextmanager
def overhearing(house: House, url: str) -> Iterator[list[str]]:
    """What anybody with a connection to the database hears of runs as they go."""
    heard: list[str] = []

    async def listen() -> Any:
        connection = await asyncpg.connect(url)
        await connection.add_listener(PARCELS, lambda *args: heard.append(str(args[-1])))
        return connection

    connection = house.run(listen())
    try:
        yield heard
    finally:
        house.run(connection.close())
