"""A release on probation answers a conversation of its own, of which nothing is left, and says when it fails often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update
from sqlmodel import SQLModel

from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection
from gofer.memory.index import sweep_postings
from gofer.releases import canary
from gofer.releases.canary import CanaryFailed, play_canary, prove, too_many_errors
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import attempts, connections
from gofer.web.chat.rooms import open_room, web_connection
from support.world import World


@pytest.fixture
async def platform(data_dir: Path, database_url: str) -> AsyncIterator[Platform]:
    settings = Settings(data_dir=data_dir, database_url=database_url, sandbox="off", poll_interval=0.2)
    async with open_app(settings, roles=frozenset({"worker"})) as opened:
        yield opened


async def rows(platform: Platform) -> dict[str, int]:
    """How many rows each table has; a process notes its own presence as it goes."""
    while await platform.database.write(sweep_postings):
        pass  # as it does by itself, of indexes that are gone
    counted = [
        table for table in SQLModel.metadata.sorted_tables if table.name not in ("worker", "alembic_version")
    ]
    return await platform.database.read(
        lambda connection: {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in counted
        }
    )


async def test_the_release_answers_and_nothing_of_it_is_left(platform: Platform) -> None:
    before = await rows(platform)
    said: list[str] = []

    def notify(text: str) -> None:
        said.append(text)
        raise RuntimeError("enough")  # it would go on to look for errors

    with pytest.raises(RuntimeError):
        await prove(platform, notify)
    assert said == ["GOFER_PROVED=1"]

    assert await rows(platform) == before


async def test_whoever_opens_the_web_chat_meanwhile_gets_a_room_of_their_own(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str] = []
    answered = canary._answered

    async def meanwhile(platform: Platform, place: str) -> None:
        met.append((await web_connection(platform)).account.id)
        await platform.database.write(
            open_room, vault=platform.vault, connection_id=met[0], member_id="member_ada"
        )
        await answered(platform, place)

    monkeypatch.setattr(canary, "_answered", meanwhile)
    await play_canary(platform)
    assert not met[0].startswith("canary_")


async def test_a_release_that_does_not_answer_says_so_and_leaves_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr(canary, "END_TIMEOUT", 0.1)
    assert platform.worker is not None
    await platform.worker.stop()
    before = await rows(platform)
    said: list[str] = []
    await prove(platform, said.append)
    assert said == ["GOFER_UNFIT=it did not answer within 1 seconds"]
    assert await rows(platform) == before


async def test_a_busy_release_is_not_taken_for_a_broken_one(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "ANSWER_TIMEOUT", 0.3)
    monkeypatch.setattr(canary, "END_TIMEOUT", 0.1)
    assert platform.worker is not None
    await platform.worker.stop()
    looks = iter([False] * 10)
    monkeypatch.setattr(platform.worker, "has_room", lambda pool: next(looks, True))
    with pytest.raises(CanaryFailed):
        await play_canary(platform)
    assert next(looks, None) is None, "the time in which every slot was taken did not count"


async def test_what_a_killed_process_left_of_its_canary_goes_with_the_next(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await rows(platform)

    async def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(canary, "_until_quiet", killed)
        patched.setattr(canary, "_answered", killed)
        with pytest.raises(KeyboardInterrupt):
            await play_canary(platform)
    assert (await rows(platform))["conversation"] == before["conversation"] + 1
    left = select(connections.c.id).where(connections.c.name == "canary")
    (place,) = await platform.database.read(lambda connection: list(connection.execute(left).scalars()))
    await canary._until_quiet(platform, place)  # in a process that was killed nothing goes on
    old = update(connections).where(connections.c.name == "canary").values(created_at=now() - 3600)
    await platform.database.write(lambda connection: connection.execute(old) and None)
    await play_canary(platform)
    assert await rows(platform) == before


async def test_a_connection_that_somebody_called_canary_stays(platform: Platform) -> None:
    mine = partial(
        add_connection,
        vault=platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=platform.registry.get("webchat"),
        name="canary",
        settings={},
        secrets_given={},
        by="test",
    )
    id_ = await platform.database.write(mine)
    old = update(connections).values(created_at=1.0)
    await platform.database.write(lambda connection: connection.execute(old) and None)
    await play_canary(platform)
    left = select(connections.c.id).where(connections.c.name == "canary")
    found = await platform.database.read(lambda connection: list(connection.execute(left).scalars()))
    assert found == [id_]


@pytest.mark.parametrize(
    ("before", "after", "unfit"),
    [
        ((0, 0), (0, 50), False),
        ((0, 0), (4, 4), False),  # too few to say anything
        ((0, 0), (5, 6), True),
        ((0, 100), (6, 100), False),  # some are normal
        ((0, 100), (30, 100), True),
        ((50, 100), (60, 100), False),  # it was no better before
    ],
)
async def test_more_errors_than_before_are_noticed(
    world: World, before: tuple[int, int], after: tuple[int, int], unfit: bool
) -> None:
    job = await world.submit()

    def fill(connection: Any) -> None:
        fence = 0
        for at, (failed, ended) in ((1000.0, before), (2000.0, after)):
            for number in range(ended):
                fence += 1
                reason = "internal" if number < failed else ""
                row = {"job_id": job, "fence": fence, "number": 1, "owner": "p", "started_at": at}
                connection.execute(insert(attempts).values(**row, ended_at=at, outcome="x", reason=reason))

    await world.database.write(fill)
    found = await world.database.read(lambda connection: too_many_errors(connection, since=1500.0))
    assert bool(found) == unfit
