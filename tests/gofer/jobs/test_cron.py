"""Schedules: each tick once, whoever looks first; what was missed is made up for as the policy says."""

from __future__ import annotations

import asyncio
import math
import zoneinfo
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, true, update

from gofer.errors import ConfigError
from gofer.jobs import cron
from gofer.jobs.cron import Missed, add_schedule, tick, ticks
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import jobs, schedules
from support.world import World

HOUR = 3600.0


async def schedule(world: World, line: str = "0 * * * *", **values: object) -> str:
    id_: str = await world.run(
        add_schedule,
        **{"workspace_id": FIRST_WORKSPACE, "name": "tidy", "cron": line, "kind": "tidy", **values},
    )
    return id_


async def be_away(world: World, hours: float) -> None:
    """Let the next run have been due some hours ago."""
    await world.run(lambda c: c.execute(update(schedules).values(next_at=schedules.c.next_at - hours * HOUR)))


async def test_nothing_happens_before_its_time(world: World) -> None:
    await schedule(world)
    assert await world.run(tick) == 0


@pytest.mark.parametrize(("missed", "made"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_missed_runs_are_made_up_for_as_the_policy_says(
    world: World, missed: Missed, made: int
) -> None:
    # Daily at noon and never near the time of the test, so that no run is on time.
    far = (datetime.now(ZoneInfo("UTC")).hour + 12) % 24
    await schedule(world, f"30 {far} * * *", missed=missed)
    await be_away(world, 5 * 24)
    assert await world.run(tick) == made
    assert await world.run(tick) == 0


async def test_a_run_on_time_is_not_skipped(world: World) -> None:
    await schedule(world, "* * * * *", missed="skip")
    await be_away(world, 1 / 60)
    assert await world.run(tick) == 1


async def test_a_year_away_is_bounded(world: World) -> None:
    await schedule(world, "* * * * *", missed="all")
    await be_away(world, 365 * 24)
    assert await world.run(tick) == 100


async def test_several_workers_make_each_run_once(world: World) -> None:
    await schedule(world, missed="all")
    await be_away(world, 3)
    assert sum(await asyncio.gather(*(world.run(tick) for _ in range(6)))) == 3
    assert await world.count(jobs) == 3


async def test_runs_of_one_schedule_do_not_overlap_and_know_their_time(world: World) -> None:
    await schedule(world, missed="all", payload={"what": "attic"})
    await be_away(world, 2)
    await world.run(tick)
    first = await world.claim_one(pool="service", limit=5)
    assert first.payload["what"] == "attic"
    await world.end(first)
    second = await world.claim_one(pool="service", limit=5)
    assert second.payload["due_at"] - first.payload["due_at"] == HOUR


async def test_a_schedule_that_is_off_makes_nothing(world: World) -> None:
    await schedule(world)
    await be_away(world, 3)
    await world.run(lambda c: row_macs.update(c, schedules, true(), {"enabled": False}))
    assert await world.run(tick) == 0


async def test_one_that_cannot_be_reckoned_is_switched_off_and_the_others_go_on(world: World) -> None:
    strange, sound = [await schedule(world, "* * * * *", name=name) for name in ("strange", "sound")]
    await world.run(
        lambda c: row_macs.update(c, schedules, schedules.c.id == strange, {"timezone": "Mars/Base"})
    )
    await be_away(world, 1)
    assert await world.run(tick) == 1
    on = await world.run(
        lambda c: c.execute(select(schedules.c.id).where(schedules.c.enabled)).scalars().all()
    )
    assert on == [sound]


async def test_one_that_never_comes_due_again_runs_a_last_time_and_is_switched_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedule(world)
    await be_away(world, 1)
    monkeypatch.setattr(cron, "ticks", lambda *_: iter(()))  # as cronsim after 50 years without a match
    assert await world.run(tick) == 1
    assert await world.run(tick) == 0
    ((enabled, next_at),) = await world.rows(select(schedules.c.enabled, schedules.c.next_at))
    assert not enabled
    assert math.isfinite(next_at)


@pytest.mark.parametrize("enabled", [True, False])
async def test_an_infinite_time_of_an_earlier_release_is_put_right(world: World, enabled: bool) -> None:
    await schedule(world)
    endless = {"next_at": math.inf, "enabled": enabled}
    await world.run(lambda c: row_macs.update(c, schedules, true(), endless))
    assert await world.run(tick) == 0
    ((enabled, next_at),) = await world.rows(select(schedules.c.enabled, schedules.c.next_at))
    assert not enabled
    assert math.isfinite(next_at)


def test_a_machine_needs_no_time_zones_of_its_own() -> None:
    zoneinfo.reset_tzpath(to=())
    try:
        assert ZoneInfo.no_cache("Europe/Berlin").key == "Europe/Berlin"
    finally:
        zoneinfo.reset_tzpath()


async def test_after_a_run_the_next_is_in_the_future(world: World) -> None:
    await schedule(world)
    await be_away(world, 3)
    await world.run(tick)
    ((ahead,),) = await world.rows(select(schedules.c.next_at - now()))
    assert 0 < ahead <= HOUR


@pytest.mark.parametrize("cron", ["nonsense", "* * *", "0 0 31 2 *", ""])
async def test_a_line_that_never_comes_due_is_refused(world: World, cron: str) -> None:
    with pytest.raises(ConfigError, match="not a cron line"):
        await schedule(world, cron)


@pytest.mark.parametrize(("short", "line"), [("@hourly", "0 * * * *"), ("@Daily ", "0 0 * * *")])
async def test_the_usual_shortcuts_are_known(world: World, short: str, line: str) -> None:
    await schedule(world, short)
    assert [row.cron for row in await world.rows(select(schedules.c.cron))] == [line]


async def test_an_unknown_time_zone_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="Mars/Olympus"):
        await schedule(world, timezone="Mars/Olympus")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T02:30"]),  # 02:30 does not exist on the 29th
        ("2026-10-24T12:00", ["2026-10-25T02:30", "2026-10-26T02:30"]),  # 02:30 comes twice on the 25th
    ],
)
def test_daylight_saving_neither_drops_nor_doubles_a_run(start: str, expected: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    after = datetime.fromisoformat(start).replace(tzinfo=zone).timestamp()
    times = islice(ticks("30 2 * * *", "Europe/Berlin", after), 2)
    assert [datetime.fromtimestamp(t, zone).strftime("%Y-%m-%dT%H:%M") for t in times] == expected
