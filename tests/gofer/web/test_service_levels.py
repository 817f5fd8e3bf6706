"""Service levels: computed from rows on both databases, within a window, and with few labels."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, insert, select, update

from gofer.jobs.outcome import Dead, Done, Retry, Wait
from gofer.runs.spend import today
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import agents, attempts, events, jobs, messages, replies, spends, tasks
from gofer.web.queries import service_levels as levels
from gofer.web.queries.service_levels import service_levels
from support.web_server import House
from support.world import World


async def figures(world: World) -> dict[str, Any]:
    found: dict[str, Any] = await world.database.read(lambda c: service_levels(c, "UTC"))
    return found


async def window(world: World, name: str = "hour") -> dict[str, Any]:
    windows: dict[str, dict[str, Any]] = {each["window"]: each for each in (await figures(world))["windows"]}
    return windows[name]


async def answered(world: World, room: str, word: float, answer: float) -> int:
    """A message that got its first word and its answer after so many seconds."""
    await world.say(room=room)
    claim = await world.answer(room)

    def place(connection: Connection) -> None:
        asked = connection.execute(
            select(messages.c.created_at).where(messages.c.conversation_id == claim.conversation_id).limit(1)
        ).scalar_one()
        connection.execute(
            update(replies).where(replies.c.job_id == claim.id).values(sent_at=asked + answer, state="sent")
        )
        turn = {
            "workspace_id": FIRST_WORKSPACE, "kind": "turn.finished", "version": 1, "job_id": claim.id, "seq": 900,
            "data": {"word_ms": 500}, "at": asked + word + 0.5, "tx": 0,
        }  # fmt: skip
        silent = {**turn, "seq": 901, "data": {"word_ms": None}, "at": asked}
        recall = {**turn, "seq": 902, "kind": "tool.finished", "data": {"name": "recall", "status": "ok"}}
        connection.execute(insert(events), [turn, silent, recall] if room == "room-1" else [turn, silent])

    await world.run(place)
    return claim.id


async def test_waiting_times_are_those_of_the_messages_of_the_window(world: World) -> None:
    empty = await window(world)
    assert (empty["answer"]["p95"], empty["recall_rate"]) == (None, None)
    for number in range(1, 21):
        await answered(world, f"room-{number}", number, 10 * number)
    found = await window(world)
    assert found["first_word"]["count"] == found["answer"]["count"] == 20
    assert abs(found["first_word"]["p50"] - 10) < 0.1
    assert abs(found["first_word"]["p95"] - 19) < 0.1
    assert abs(found["answer"]["p95"] - 190) < 0.1
    assert found["recall_rate"] == 1 / 20
    old = jobs.c.id.in_([row.id for row in (await world.answer_jobs())[:15]])
    await world.run(lambda c: c.execute(update(jobs).where(old).values(finished_at=now() - 7200)))
    assert (await window(world))["answer"]["count"] == 5
    assert (await window(world, "day"))["answer"]["count"] == 20
    await world.run(lambda c: c.execute(update(jobs).values(finished_at=now() - 2 * 86400)))
    assert (await window(world, "day"))["answer"]["count"] == 0


async def test_errors_and_retries_are_counted_by_kind_of_worker(world: World) -> None:
    await world.submit(kind="deliver")
    claim = await world.claim_one()
    await world.end(claim, Retry("busy", after=0))
    await world.end(await world.claim_one(), Done())
    task = {
        "id": "task_1", "workspace_id": FIRST_WORKSPACE, "agent_id": "a", "call_id": "", "number": 1,
        "kind": "research", "state": "failed", "needs": [], "reason": "", "tries": 1, "cost": 0.0, "created_at": 1.0,
    }  # fmt: skip
    await world.say(room="kitchen")
    await world.work()
    (job, *_) = await world.answer_jobs()
    await world.run(lambda c: c.execute(insert(tasks).values(**task, conversation_id=job.conversation_id)))
    await world.submit(kind="task", payload={"task": "task_1"})
    await world.end(await world.claim_one(), Dead("internal"))
    for number, state in ((2, "failed"), (3, "done")):
        plan = {
            **task,
            "id": f"task_{number}",
            "number": 0,
            "kind": "plan",
            "state": state,
            "finished_at": 1.0,
        }
        made = await world.submit(kind="task", payload={"task": plan["id"]})
        plan |= {"conversation_id": job.conversation_id, "job_id": made}
        await world.run(lambda c, row=plan: c.execute(insert(tasks).values(**row)))
        await world.end(await world.claim_one(), Done())
    await world.submit(kind="made.up.by.somebody")
    await world.work()
    found = {each["kind"]: each for each in (await window(world))["kinds"]}
    assert (found["deliver"]["ended"], found["deliver"]["retries"], found["deliver"]["errors"]) == (1, 1, 0)
    assert (found["task.research"]["errors"], found["answer"]["errors"]) == (1, 0)
    assert (found["task.plan"]["ended"], found["task.plan"]["errors"]) == (2, 1), "a plan that was none"
    assert found["other"]["ended"] == 1, "a kind that nobody knows makes no label of its own"


async def test_the_queue_is_told_by_kind_with_the_age_of_its_oldest(world: World) -> None:
    for _ in range(3):
        await world.submit(kind="deliver")
    await world.submit(kind="answer", delay=1000)
    await world.run(
        lambda c: c.execute(update(jobs).where(jobs.c.kind == "deliver").values(run_at=jobs.c.run_at - 60))
    )
    await world.claim_one()
    queue = {each["kind"]: each for each in (await figures(world))["queue"]}
    assert (queue["deliver"]["ready"], queue["deliver"]["running"]) == (2, 1)
    assert 60 <= queue["deliver"]["oldest_seconds"] < 120
    assert (queue["answer"]["scheduled"], queue["answer"]["oldest_seconds"]) == (1, 0)
    await world.end(await world.claim_one(), Wait("Which one?"))
    waiting = {each["kind"]: each["waiting"] for each in (await figures(world))["queue"]}
    assert waiting == {"deliver": 1, "answer": 0}


async def test_heartbeats_cost_by_agent_and_day_and_only_heartbeats(world: World) -> None:
    for number in range(60):
        await world.agent(f"agent-{number:02}")
    named = {row.name: row.id for row in await world.rows(select(agents))}

    def spend(connection: Connection) -> None:
        day = today(connection, "UTC")
        common = {
            "workspace_id": FIRST_WORKSPACE, "conversation_id": "", "connection_id": "", "model": "", "settled": True,
            "background": True, "micros": 1_000_000,
        }  # fmt: skip
        spent = [
            {**common, "agent_id": id_, "job_id": job, "key": "heartbeat:turn:1", "day": day}
            for job, id_ in enumerate(named.values())
        ]
        other = {**common, "agent_id": named["gofer"], "job_id": 999, "key": "turn:1", "day": day}
        long_ago = {**other, "job_id": 1000, "key": "heartbeat:turn:1", "day": "2020-01-01"}
        connection.execute(insert(spends), [*spent, other, long_ago])

    await world.run(spend)
    found = (await figures(world))["heartbeats"]
    assert len(found) == levels.MAX_AGENTS + 1, "so many agents have a label, and the others one together"
    assert sum(each["dollars"] for each in found) == len(named)
    assert {each["today"] for each in found} == {True}


async def test_a_long_history_is_not_read(world: World) -> None:
    row = {
        "workspace_id": FIRST_WORKSPACE, "kind": "deliver", "pool": "service", "state": "done", "lane": "x",
        "priority": 0, "run_at": 0.0, "attempts": 1, "max_attempts": 5, "fence": 1, "cancel_requested": False,
        "event_seq": 1, "covers_from": 0, "payload": {}, "reason": "", "created_at": 0.0,
    }  # fmt: skip

    def live_long(connection: Connection) -> None:
        for _ in range(12):
            connection.execute(insert(jobs).values(finished_at=now() - 60), [row] * 1000)
        tries = [{"job_id": id_, "fence": 1, "number": 1, "owner": "", "started_at": 0.0, "reason": "", "cost": 0.0}
                 for id_ in connection.execute(select(jobs.c.id).limit(10)).scalars()]  # fmt: skip
        connection.execute(insert(attempts).values(outcome="retry"), tries)

    await world.run(live_long)
    found = await window(world)
    assert sum(each["ended"] for each in found["kinds"]) == levels.MAX_JOBS
    assert found["runs"] == 0


def test_the_api_the_page_and_the_metrics_say_the_same(house: House) -> None:
    api = house.api(house.token(house.owner()))
    found = api.get("/levels")
    assert found.status_code == 200, found.text
    assert [each["window"] for each in found.json()["windows"]] == ["hour", "day"]
    viewer = house.browser(accept="text/html")
    viewer.follow(house.link(house.member("vera", "viewer")))
    page = viewer.get("/levels")
    assert page.status_code == 200
    assert "How long people wait" in page.text
    assert house.browser(accept="text/html").get("/levels").status_code in (302, 303, 401)
    metrics = house.browser().get("/metrics").text
    assert 'gofer_answers{window="hour"}' in metrics
    assert "gofer_heartbeat_dollars" in metrics
    begun = time.monotonic()
    for _ in range(20):
        assert api.get("/levels").json() == found.json(), "computed once in a while, however many ask"
    assert time.monotonic() - begun < 60
