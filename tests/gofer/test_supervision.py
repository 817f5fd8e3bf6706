"""A process that `gofer up` runs: the supervisor's socket, signs of life, and its events in the log, each once."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text, update

from gofer.app import open_app
from gofer.jobs import maintenance
from gofer.settings import Settings
from gofer.store.postgres import PostgresDatabase
from gofer.store.tables import SUPERVISED, master_keys
from gofer.supervision import (
    Readiness,
    give_signs_of_life,
    passed_socket,
    record_spooled,
    say_event,
    supervised_events,
)
from gofer.vault.redaction import Redactor, Secret
from gofer_supervisor.home import Home
from gofer_supervisor.system import notify_systemd
from support.patience import patiently
from support.world import World

END_SLEEPERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
LOSE = f"ALTER TABLE {master_keys.name} RENAME TO lost"
"""What makes the process's readiness fail while the database is there."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(str(tmp_path / "home"))
    made.prepare()
    return made


async def kept(world: World) -> list[str]:
    """What the log holds, the newest first."""
    found = await world.database.read(lambda connection: supervised_events(connection, limit=100))
    return [f"{event['kind']} {event.get('name', '')}".strip() for event in found]


async def test_what_the_supervisor_saw_is_in_the_log_once_and_in_order(world: World, home: Home) -> None:
    spool = Path(home.path, "events")
    home.note("worker.spawned", name="serve")
    home.note("worker.exited", name="serve", code=-9)
    before = {place.name: place.read_bytes() for place in spool.iterdir()}
    await record_spooled(world.database, world.vault, Redactor(), spool)
    assert await kept(world) == ["worker.exited serve", "worker.spawned serve"]
    assert list(spool.iterdir()) == []
    for name, content in before.items():  # as if the process had died before it removed them
        (spool / name).write_bytes(content)
    await record_spooled(world.database, world.vault, Redactor(), spool)
    assert len(await kept(world)) == 2
    home.note("revision.promoted", name="next")
    await record_spooled(world.database, world.vault, Redactor(), spool)
    assert (await kept(world))[0] == "revision.promoted next"


async def test_two_processes_that_take_the_same_event_record_it_once(world: World, home: Home) -> None:
    for number in range(5):
        home.note("worker.spawned", name=f"web-{number}")
    spool = Path(home.path, "events")
    both = [record_spooled(world.database, world.vault, Redactor(), spool) for _ in range(2)]
    await asyncio.gather(*both)
    assert sorted(await kept(world)) == [f"worker.spawned web-{number}" for number in range(5)]


async def test_secrets_in_last_lines_are_masked(world: World, home: Home) -> None:
    home.note("worker.exited", name="serve", last_lines=["could not sign in with tr0ub4dor-and-3"])
    redactor = Redactor({"password": Secret("tr0ub4dor-and-3")})
    await record_spooled(world.database, world.vault, redactor, Path(home.path, "events"))
    (event,) = await world.database.read(lambda connection: supervised_events(connection, limit=1))
    assert "tr0ub4dor" not in str(event)


async def test_what_is_no_event_of_the_supervisor_is_not_recorded(world: World, home: Home) -> None:
    spool = Path(home.path, "events")
    (spool / "1.json").write_text("{not json")
    (spool / "2.json").write_text('{"kind": "person.let_in", "at": 1, "data": {"role": "owner"}}')
    (spool / "3.json").write_text('{"kind": "worker.spawned", "at": "never", "data": {}}')
    home.note("worker.spawned", name="serve")
    await record_spooled(world.database, world.vault, Redactor(), spool)
    assert await kept(world) == ["worker.spawned serve"]


async def test_they_are_never_pruned(world: World, home: Home) -> None:
    home.note("worker.spawned", name="serve")
    await record_spooled(world.database, world.vault, Redactor(), Path(home.path, "events"))
    await world.database.write(lambda connection: maintenance.prune(connection, older_than=-1))
    assert await kept(world) == ["worker.spawned serve"]


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where a process says how it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0gofer-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@gofer-test-{os.getpid()}")
        heard.settimeout(60)
        yield heard


async def test_a_watched_process_gives_signs_of_life_and_says_that_it_cannot_work(
    notices: socket.socket, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    async with open_app(Settings(data_dir=data_dir), roles=frozenset()) as platform:
        living = asyncio.create_task(give_signs_of_life(platform))
        async with patiently(10):
            assert [await asyncio.to_thread(notices.recv, 200) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            await platform.database.write(lambda c: c.execute(text(LOSE)))
            heard = b"WATCHDOG=1"
            while heard == b"WATCHDOG=1":
                heard = await asyncio.to_thread(notices.recv, 1000)
        living.cancel()
    assert heard.startswith(b"WATCHDOG=1\nGOFER_UNREADY=")
    assert b"\n" not in heard.partition(b"\n")[2]


def test_a_supervisor_that_does_not_listen_is_not_waited_for(notices: socket.socket) -> None:
    for _ in range(2000):  # more than the kernel keeps
        notify_systemd("WATCHDOG=1")
    assert notices.recv(100) == b"WATCHDOG=1"


async def test_a_process_that_lost_the_key_or_the_file_is_not_started_again_for_that(data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir)
    async with open_app(settings, roles=frozenset()) as platform:
        readiness = Readiness(platform)
        await platform.database.write(lambda c: c.execute(update(master_keys).values(id="00" * 8)))
        assert await readiness.look() == ""
        await platform.database.write(lambda c: c.execute(text(LOSE)))
        assert await readiness.look() != ""
        assert settings.sqlite_path is not None
        settings.sqlite_path.rename(data_dir / "elsewhere")
        assert await readiness.look() == "", "a new process would begin with an empty store"


async def test_a_process_whose_connections_are_all_taken_says_so_unless_postgres_is_away(
    postgres_url: str, data_dir: Path
) -> None:
    async with open_app(
        Settings(data_dir=data_dir, database_url=postgres_url), roles=frozenset()
    ) as platform:
        mine = PostgresDatabase(postgres_url, pool_size=1, patience=0.2)
        readiness = Readiness(replace(platform, database=mine), within=5)
        assert await readiness.look() == ""
        leaked = [
            asyncio.create_task(mine.read(lambda c: c.execute(text("SELECT pg_sleep(3600)"))))
            for _ in range(2)
        ]
        async with patiently(20):
            while not (fault := await readiness.look()):
                pass
        assert "cannot be reached" in fault
        nowhere = platform.settings.model_copy(update={"database_url": "postgresql://127.0.0.1:1/gofer"})
        away = Readiness(replace(platform, database=mine, settings=nowhere), within=5)
        assert await away.look() == "", "a new process could not work either"
        for one in leaked:
            one.cancel()
        await platform.database.write(lambda c: c.execute(text(END_SLEEPERS)))
        await asyncio.gather(*leaked, return_exceptions=True)
        await mine.close()


def test_a_socket_that_is_meant_for_another_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert passed_socket() is None


def test_every_event_is_said_in_words() -> None:
    for kind in SUPERVISED:
        said = say_event({"kind": kind, "name": "serve", "reason": "Why.", "by": "ada", "to": "one"})
        assert said
        assert "None" not in said


async def test_events_of_two_machines_are_all_recorded_whichever_clock_is_ahead(
    world: World, home: Home, tmp_path: Path
) -> None:
    other = Home(str(tmp_path / "other"))
    other.prepare()
    home.note("worker.spawned", name="here")
    other.note("worker.spawned", name="there")
    for one in (other, home):  # the second one's event has the smaller number
        await record_spooled(world.database, world.vault, Redactor(), Path(one.path, "events"))
    assert await kept(world) == ["worker.spawned here", "worker.spawned there"]
