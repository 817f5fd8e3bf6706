"""Upkeep: what should not exist is made good, what is old goes, what is needed stays."""

from __future__ import annotations

import asyncio

from sqlalchemy import insert, select, update

from gofer.jobs import maintenance
from gofer.jobs.outcome import Dead
from gofer.store.tables import (
    attempts,
    conversations,
    deliveries,
    events,
    jobs,
    messages,
    participants,
    replies,
    workers,
)
from support.world import CONNECTION, World

MONTH = 30 * 86400.0


async def test_a_blocked_job_in_a_free_lane_is_freed(world: World) -> None:
    first, second = await world.submit("kitchen"), await world.submit("kitchen")
    await world.run(lambda c: c.execute(update(jobs).where(jobs.c.id == first).values(state="done")))
    assert await world.sweep() == 1
    assert await world.states(second) == ["ready"]
    assert await world.sweep() == 0


async def test_a_wanted_participant_without_a_job_gets_one(world: World) -> None:
    await world.say()
    await world.run(lambda c: c.execute(jobs.delete()))
    assert await world.sweep() == 1
    assert len(await world.claim()) == 1


async def test_unsent_replies_without_a_job_get_one(world: World) -> None:
    await world.say()
    await world.answer()
    await world.run(lambda c: c.execute(jobs.delete().where(jobs.c.kind == "deliver")))
    assert await world.sweep() == 1
    assert len(await world.claim(pool="service")) == 1


async def test_several_workers_sweeping_at_once_do_it_once(world: World) -> None:
    for n in range(5):
        await world.say(room=f"room {n}")
    await world.run(lambda c: c.execute(jobs.delete()))
    assert sum(await asyncio.gather(*(world.sweep() for _ in range(4)))) == 5
    assert await world.count(jobs) == 5


async def test_several_workers_rescuing_at_once_do_it_once(world: World) -> None:
    made = [await world.submit() for _ in range(5)]
    await world.claim(limit=5)
    await world.pass_time(31)
    assert sum(await asyncio.gather(*(world.sweep() for _ in range(4)))) == 5
    assert [len(await world.tries(job)) for job in made] == [1] * 5


async def test_a_lost_job_of_a_purged_conversation_still_ends(world: World) -> None:
    await world.say()
    claim = await world.claim_one()
    await world.run(lambda c: c.execute(update(messages).values(trust="member")))
    await world.run(lambda c: c.execute(update(jobs).values(max_attempts=1)))
    await world.run(lambda c: c.execute(update(conversations).values(data_key=None)))
    await world.pass_time(31)
    await world.sweep()
    assert await world.states(claim.id) == ["dead"]
    assert await world.replies() == []


async def test_at_start_on_one_machine_every_old_lease_is_dead(world: World) -> None:
    await world.submit()
    await world.claim_one(lease=1000)
    assert await world.run(maintenance.expire_all_leases) == 1
    assert await world.sweep() == 1


# Pruning.


async def test_what_is_old_goes_with_its_trail_and_messages_stay(world: World) -> None:
    await world.say()
    await world.answer()
    await world.run(lambda c: c.execute(update(replies).values(state="sent")))
    await world.work(pool="service")
    await world.run(lambda c: c.execute(update(events).values(at=events.c.at - MONTH)))
    await world.pass_time(MONTH)
    await world.run(maintenance.prune, older_than=MONTH - 60)
    tables = (jobs, attempts, events, replies, deliveries)
    assert [await world.count(table) for table in tables] == [0, 0, 0, 0, 0]
    assert await world.count(messages) == 2
    assert await world.count(participants) == 1


async def test_nothing_young_live_or_unsent_is_pruned(world: World) -> None:
    await world.say()
    await world.answer()  # its reply is planned, and a deliver job is ready
    ready = await world.submit()
    await world.pass_time(MONTH)
    before = await world.count(jobs)
    await world.run(maintenance.prune, older_than=MONTH - 60)
    assert await world.count(jobs) == before
    assert await world.states(ready) == ["ready"]


async def test_pruning_goes_in_batches(world: World) -> None:
    rows = [
        {
            "workspace_id": "main", "kind": "work", "state": "done", "lane": f"l{n}", "created_at": 0.0,
            "finished_at": 1.0, "payload": {},
        }
        for n in range(250)
    ]  # fmt: skip
    await world.run(lambda c: c.execute(insert(jobs), rows))
    assert [(await world.run(maintenance.prune, older_than=60))["jobs"] for _ in range(4)] == [
        100,
        100,
        50,
        0,
    ]


async def test_what_needed_no_answer_keeps_its_content_for_a_few_days(world: World) -> None:
    kept = {
        "workspace_id": "main", "connection_id": CONNECTION, "body_hash": "", "source": "webhook",
        "event": "ping", "note": "", "conversation_id": None, "message_seq": None, "sealed": b"x",
    }  # fmt: skip
    rows = [{**kept, "external_id": name, "received_at": at} for name, at in (("old", 0.0), ("new", 4e9))]
    await world.run(lambda c: c.execute(insert(deliveries), rows))
    await world.run(maintenance.prune, older_than=1e10)
    left = await world.rows(select(deliveries.c.external_id, deliveries.c.sealed))
    assert {(row.external_id, row.sealed is None) for row in left} == {("old", True), ("new", False)}


async def test_silent_processes_are_forgotten_and_present_ones_are_not(world: World) -> None:
    row = {"host": "h", "pid": 1, "roles": "worker", "version": "0", "started_at": 0.0, "seen_at": 0.0}
    await world.run(lambda c: c.execute(insert(workers), [{"id": name, **row} for name in ("old", "here")]))
    await world.run(maintenance.seen, worker_id="here")
    assert (await world.run(maintenance.prune, older_than=60))["workers"] == 1


# What people look at first.


async def test_the_depth_of_each_state_and_the_longest_wait(world: World) -> None:
    for lane in ("a", "a", "b", "c"):
        await world.submit(lane)
    await world.end(await world.claim_one(), Dead("hopeless"))
    await world.pass_time(100)
    assert await world.database.read(maintenance.depth) == {"ready": 3, "dead": 1}
    assert await world.database.read(maintenance.oldest_ready) >= 100
