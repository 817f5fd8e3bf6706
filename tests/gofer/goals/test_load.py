"""What an agent's workers have to do: told when it changes, kept over restarts, cleared by a person."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.agent.outcome import Delegated
from gofer.goals import records
from gofer.goals.load import PROLONGED_AFTER, Load, clear_load, count_tasks, load_of, watch_loads
from gofer.goals.tasks import StoreDelegations, begin_task, delegate_tasks, finish_task
from gofer.jobs.notifications import LocalSignals
from gofer.jobs.outcome import Cancel, WaitForJobs
from gofer.jobs.queue import WORKER, TaskBounds
from gofer.settings import Settings
from gofer.store.tables import agents, events, participants, tasks
from gofer.tool import NewTask
from support.goal_bench import Bench
from support.world import World


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, agent_tasks=2, task_queue=3)


class Burst:
    """Runs that delegate, and workers that take what they may."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world, self.settings = world, settings

    async def delegate(self, count: int, room: str) -> Any:
        taken = await self.world.say(room=room)
        claim = await self.world.claim_one()
        while claim.conversation_id != taken.conversation_id:
            await self.world.end(claim)  # one whose tasks are over
            claim = await self.world.claim_one()
        made = tuple(NewTask("research", f"t{number}", "Look.") for number in range(count))
        wanted = Delegated("call", made, 1, "member", False, False)
        verb = partial(delegate_tasks, vault=self.world.vault, claim=claim, wanted=wanted, message_seq=1)
        await self.world.end(claim, WaitForJobs(tuple(await self.world.run(verb))))
        return claim

    async def take(self) -> list[Any]:
        bounds = TaskBounds(agent=self.settings.agent_tasks)
        claims = await self.world.claim(10, pool=WORKER, tasks=bounds)
        for claim in claims:
            await self.world.run(begin_task, task_id=claim.payload["task"])
        return claims

    async def look(self) -> Load:
        await self.world.run(watch_loads, settings=self.settings)
        (agent,) = await self.world.rows(select(agents))
        load: Load = await self.world.run(load_of, agent_id=agent.id, settings=self.settings)
        return load

    async def told(self) -> list[dict[str, Any]]:
        query = select(events.c.data).where(events.c.kind == "worker.saturated").order_by(events.c.id)
        return [row.data for row in await self.world.rows(query)]

    async def pass_time(self, seconds: float) -> None:
        (agent,) = await self.world.rows(select(agents))
        load = {**agent.load, "saturated_at": agent.load["saturated_at"] - seconds}
        await self.world.run(lambda c: c.execute(update(agents).values(load=load)))


@pytest.fixture
def burst(world: World, settings: Settings) -> Burst:
    return Burst(world, settings)


async def test_a_burst_saturates_and_its_end_clears_by_itself(burst: Burst) -> None:
    await burst.delegate(4, "kitchen")
    running = await burst.take()
    assert len(running) == 2
    load = await burst.look()
    assert (load.accepted, load.queued, load.active, load.saturated) == (4, 2, 2, True)
    assert not load.prolonged_saturation
    for claim in running:
        await burst.world.end(claim)
    for claim in await burst.take():
        await burst.world.end(claim)
    load = await burst.look()
    assert (load.queued, load.active, load.saturated) == (0, 0, False)
    assert [each["saturated"] for each in await burst.told()] == [True, False]
    await burst.look()
    assert len(await burst.told()) == 2, "nothing is told when nothing has changed"


async def test_saturation_that_lasts_is_told_once_and_survives_a_restart(burst: Burst) -> None:
    await burst.delegate(4, "kitchen")
    await burst.take()
    await burst.look()
    await burst.pass_time(PROLONGED_AFTER + 1)
    # Nothing is kept in memory: whoever looks next, in whichever process, finds the same.
    load = await burst.look()
    assert load.prolonged_saturation
    assert (await burst.look()).prolonged_saturation
    assert [each["prolonged_saturation"] for each in await burst.told()] == [False, True]


async def test_what_is_refused_is_counted_and_nothing_accepted_is_cut(burst: Burst) -> None:
    claim = await burst.delegate(4, "kitchen")
    await burst.take()
    world = burst.world
    refused = await StoreDelegations(world.database, world.vault, claim, burst.settings.task_queue).refusal(2)
    assert "wait already" in refused
    load = await burst.look()
    assert (load.accepted, load.dropped, load.total) == (4, 2, 6)
    assert await world.count(tasks, tasks.c.state == "dropped") == 0


async def test_no_count_is_lost_to_those_who_tell_of_it_at_the_same_moment(burst: Burst) -> None:
    world = burst.world
    await burst.delegate(1, "kitchen")
    (agent,) = await world.rows(select(agents))
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(world.run(count_tasks, agent_id=agent.id, accepted=1))
            group.create_task(world.run(watch_loads, settings=burst.settings))
    load = await burst.look()
    assert (load.accepted, load.dropped) == (41, 0)
    assert (await burst.told())[-1]["accepted"] == 41


async def test_an_operator_clears_it_and_begins_with_a_fresh_working_memory(burst: Burst) -> None:
    parent = await burst.delegate(4, "kitchen")
    running = await burst.take()
    await burst.look()
    world = burst.world
    (agent,) = await world.rows(select(agents))
    load = await clear_load(world.database, LocalSignals(), burst.settings, agent.id, by="ann", fresh=True)
    assert (load.accepted, load.dropped, load.saturated) == (0, 0, False), "although those that run go on"
    told = (await burst.told())[-1]
    assert (told["cleared_by"], told["stopped"], told["paused_goals"]) == ("ann", 2, 0)
    (participant,) = await world.rows(select(participants))
    assert participant.epoch_seq == 1
    assert (await world.job(parent.id)).cancel_requested
    for claim in running:
        await world.end(claim, Cancel("cancelled"))
    assert not await world.claim(10, pool=WORKER)
    assert {row.state for row in await world.rows(select(tasks.c.state))} == {"dropped"}
    assert not (await burst.look()).saturated


async def test_clearing_pauses_goals_and_loses_no_task_of_theirs(world: World, settings: Settings) -> None:
    burst = Burst(world, settings)
    bench = await Bench.made(world, parallel=4)
    await bench.go()
    await bench.planned([], [], [], [], kind="execution")
    (running,) = await burst.take()
    assert (await burst.look()).queued == 3, "one at a time of a conversation, whatever may run"
    (agent,) = await world.rows(select(agents))
    load = await clear_load(world.database, LocalSignals(), settings, agent.id, by="ann")
    assert (load.queued, load.active, load.saturated) == (0, 1, False)
    told = (await burst.told())[-1]
    assert (told["stopped"], told["paused_goals"]) == (3, 1)
    assert (await bench.row()).state == "paused"
    assert await bench.states() == ["running", "queued", "queued", "queued"], "the plan is as it was"
    assert not await burst.take()
    await world.run(
        partial(finish_task, vault=world.vault, task_id=running.payload["task"], state="done", result={})
    )
    await world.end(running)
    await bench.go()
    assert (await bench.row()).state == "paused"
    await world.run(partial(records.resume, goal_id=bench.goal_id, by="ann"))
    await bench.go()
    for _ in range(3):
        await bench.end_task({"outcome": "done", "summary": "dry"})
        await bench.go()
    assert await bench.states() == ["done"] * 4
    ran = select(tasks.c.tries).where(tasks.c.number > 0).order_by(tasks.c.number)
    assert [tries for (tries,) in await world.rows(ran)] == [1, 2, 2, 2]


async def test_sustained_saturation_under_cancels_ends_with_nothing_lost(burst: Burst) -> None:
    """Runs come faster than workers take their tasks, and every third run is stopped in the middle."""
    world = burst.world
    running: list[Any] = []
    for number in range(9):
        parent = await burst.delegate(3, f"room-{number}")
        running += await burst.take()
        assert len(running) <= burst.settings.agent_tasks
        if number % 3 == 2:
            await world.cancel(parent.id)
        if number % 2:
            done, *running = running
            await world.end(done, Cancel("cancelled") if await stopped(world, done) else None)
        await burst.look()
    assert (await burst.look()).saturated
    while running or await world.count(tasks, tasks.c.finished_at.is_(None)):
        running += await burst.take()
        done, *running = running
        await world.end(done, Cancel("cancelled") if await stopped(world, done) else None)
    load = await burst.look()
    assert (load.accepted, load.queued, load.active, load.saturated) == (27, 0, 0, False)
    assert await world.count(tasks) == 27
    assert await world.sweep() == 0


async def stopped(world: World, claim: Any) -> bool:
    return bool((await world.job(claim.id)).cancel_requested)
