"""Beats: an idle instance costs nothing, what is found is on record once, and bounds follow from rows."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.heartbeat.beats import Beats
from gofer.heartbeat.brief import explain
from gofer.heartbeat.findings import HeartbeatWatch, clock, look
from gofer.heartbeat.records import (
    NUDGED,
    findings_of,
    holds_back,
    nudges,
    record,
    research_today,
    set_muted,
    settle,
    spent_today,
)
from gofer.heartbeat.runs import _begin_research
from gofer.jobs.notifications import LocalSignals
from gofer.jobs.outcome import Dead, Wait
from gofer.runs.agent_files import AgentFiles
from gofer.runs.heartbeat_settings import HeartbeatSettings, parse_items
from gofer.runs.spend import today
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import (
    agents,
    events,
    goals,
    heartbeat_findings,
    jobs,
    messages,
    participants,
    questions,
    spends,
    tasks,
)
from gofer.tool import NewTask
from support.goal_bench import new_goal
from support.world import CONNECTION, World

DAY = 86400.0
ON = HeartbeatSettings(enabled=True, hours="00:00-24:00")


async def watch(
    world: World, settings: HeartbeatSettings = ON, items: str = "", **later: float
) -> HeartbeatWatch:
    (agent,) = await world.rows(select(agents))
    at = await world.database.read(clock) + later.get("seconds", 0)
    return HeartbeatWatch(agent.id, agent.name, settings, parse_items(items, settings).items, "UTC", at)


async def question(world: World, room: str = "kitchen", asked: float = 2 * 3600) -> None:
    """A run that has waited for an answer for a while."""
    await world.say(room=room)
    claim = await world.claim_one()
    await world.end(claim, Wait("Tea?", "call", drafts=(await world.draft("Tea?", room=room, kind="note"),)))

    def age(connection: Connection) -> None:
        mine = questions.c.job_id == claim.id
        row_macs.update(connection, questions, mine, {"asked_at": questions.c.asked_at - asked})

    await world.run(age)


async def found(world: World, watching: HeartbeatWatch) -> list[tuple[str, str]]:
    seen = await world.database.read(lambda c: look(c, watching))
    return sorted((each.code, each.conversation_id) for each in seen)


async def beat(world: World, watching: HeartbeatWatch) -> int:
    seen = await world.database.read(lambda c: look(c, watching))
    made: int = await world.run(record, watch=watching, found=seen)
    return made


def idle_instance(data_dir: Path) -> AgentFiles:
    """An agent with a heartbeat at all hours, and a list of which nothing is due."""
    folder = data_dir / "agents" / "gofer"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text('[heartbeat]\nenabled = true\nhours = "00:00-24:00"\n')
    (folder / "HEARTBEAT.md").write_text("- 2099-12-24 09:00: Sing.\n")
    return AgentFiles(data_dir / "agents")


async def test_thirty_idle_days_cost_nothing_and_write_nothing(world: World, tmp_path: Path) -> None:
    days = 30 if world.database.dialect == "sqlite" else 3  # a round trip for each look takes its time
    await world.say(room="kitchen")
    for claim in await world.claim(10):
        await world.end(claim)
    before = {table.name: await world.count(table) for table in (jobs, events, spends, messages)}
    start = await world.database.read(clock)
    simulated = [start]
    beats = Beats(world.database, idle_instance(tmp_path), LocalSignals(), "UTC", now=lambda _: simulated[0])
    begun = time.process_time()
    # Every half-hour of the first days, and a few times a day from then on.
    minutes = [*range(0, 3 * 24 * 60, 30), *range(3 * 24 * 60, days * 24 * 60, 210)]
    for minute in minutes:
        simulated[0] = start + 60 * minute
        assert await beats.beat() == 0
    share = (time.process_time() - begun) / len(minutes) / (30 * 60)
    assert {table.name: await world.count(table) for table in (jobs, events, spends, messages)} == before
    assert await world.count(heartbeat_findings) == 0
    assert share < 0.01, "of a core, with a look every half-hour"


async def test_what_waits_and_what_failed_is_found_in_its_own_conversation(world: World) -> None:
    await question(world, "kitchen")
    await question(world, "hall", asked=60)
    await world.say(room="cellar")
    await world.end(await world.claim_one(), Dead("internal"))
    seen = await found(world, await watch(world))
    assert [code for code, _ in seen] == ["job.failed", "question.unanswered"]
    assert len({where for _, where in seen}) == 2
    later = await found(world, await watch(world, seconds=3 * DAY))
    assert [code for code, _ in later] == ["question.unanswered"] * 2, "what failed is old news by then"


async def test_two_processes_that_look_at_once_put_it_on_record_once(world: World) -> None:
    await question(world)
    watching = await watch(world)
    made = await asyncio.gather(*(beat(world, watching) for _ in range(8)))
    assert sum(made) == 1
    assert await world.count(jobs, jobs.c.kind == "heartbeat") == 1
    assert await world.count(heartbeat_findings) == 1
    assert await world.count(events, events.c.kind == "heartbeat.found") == 1


async def test_a_muted_conversation_is_left_alone_and_so_is_one_where_somebody_waits(world: World) -> None:
    await question(world)
    watching = await watch(world)
    (where,) = {row.conversation_id for row in await world.rows(select(participants))}
    for muted in (True, False):
        assert await world.run(
            set_muted, agent_id=watching.agent_id, conversation_id=where, muted=muted, by="test"
        )
        assert await beat(world, watching) == (0 if muted else 1)
    assert await world.count(events, events.c.kind == "conversation.changed") == 2


async def test_bounds_follow_from_rows_also_when_the_clock_jumps(world: World) -> None:
    await question(world)
    watching = await watch(world)
    assert await beat(world, watching) == 1
    (row,) = await world.rows(select(heartbeat_findings))

    async def held(at: float) -> str:
        checked = {"agent_id": row.agent_id, "conversation_id": row.conversation_id, "at": at}
        return str(await world.run(holds_back, **checked))

    assert await held(watching.at) == ""
    await world.run(settle, ids=[row.id], state=NUDGED, at=watching.at)
    assert await held(watching.at + 60) == "enough was said"
    assert await held(watching.at - 60) == "enough was said", "the clock went back a little"
    assert await held(watching.at + 3601) == ""
    for number in range(3):
        await world.run(_copy, row=row, number=number, at=watching.at + 7200 * (number + 1))
    assert await held(watching.at + 4 * 7200) == "enough was said", "four a day"
    assert await held(watching.at + 2 * DAY) == ""
    assert await held(watching.at - 400 * DAY) == "", (
        "a clock that went far back does not silence it for ever"
    )
    assert await world.run(nudges, conversation_id=row.conversation_id, at=watching.at, window=DAY) == 4


def _copy(connection: Connection, row: Any, number: int, at: float) -> None:
    values = {**row._mapping, "id": f"find_{number}", "key": f"key-{number}", "job_id": 1000 + number}
    connection.execute(heartbeat_findings.insert().values({**values, "state": NUDGED, "settled_at": at}))


async def test_without_a_budget_it_only_records(world: World) -> None:
    await question(world)
    watching = await watch(world, ON.model_copy(update={"budget": 0.0}))
    assert await beat(world, watching) == 0
    (row,) = await world.rows(select(heartbeat_findings))
    assert (row.state, row.reason, row.job_id) == ("dropped", "budget", None)
    assert await world.count(jobs, jobs.c.kind == "heartbeat") == 0
    assert await world.count(events, events.c.kind == "heartbeat.found") == 1


async def test_a_budget_that_is_used_up_puts_it_off_until_tomorrow(world: World) -> None:
    await question(world)
    watching = await watch(world)

    def spend(connection: Connection) -> None:
        row = {
            "workspace_id": FIRST_WORKSPACE, "agent_id": watching.agent_id, "conversation_id": "", "job_id": 1,
            "key": "heartbeat:turn:1", "day": today(connection, "UTC"), "micros": 500_000, "settled": True,
            "connection_id": "", "model": "", "background": True,
        }  # fmt: skip
        connection.execute(spends.insert().values(row))

    await world.run(spend)
    assert await beat(world, watching) == 0
    assert await world.count(heartbeat_findings) == 0, "so that it is found again tomorrow"
    await world.run(lambda c: c.execute(update(spends).values(day="2020-01-01")))
    assert await beat(world, watching) == 1


async def test_what_is_looked_into_counts_and_is_bounded_by_rows(world: World) -> None:
    await question(world)
    watching = await watch(world)
    assert await beat(world, watching) == 1
    (job,) = await world.rows(select(jobs).where(jobs.c.kind == "heartbeat"))
    (claim,) = [each for each in await world.claim(5, pool="service") if each.id == job.id]
    task = NewTask("research", "Tea", "Find out.")
    begin = {"vault": world.vault, "claim": claim, "task": task, "timezone": "UTC"}
    assert await world.run(_begin_research, **begin, budget=100_000) == [], "it may cost more than there is"
    first = await world.run(_begin_research, **begin, budget=500_000)
    again = await world.run(_begin_research, **begin, budget=500_000)
    assert [each.unique_key for each in first] == [each.unique_key for each in again], "once, however often"
    spent = await world.run(spent_today, agent_id=watching.agent_id, timezone="UTC")
    assert spent == 200_000, "what it may cost counts until it is over"
    ended = update(tasks).values(finished_at=watching.at, cost=0.01, state="done")
    await world.run(lambda c: c.execute(ended))
    assert await world.run(spent_today, agent_id=watching.agent_id, timezone="UTC") == 10_000
    count = {"agent_id": watching.agent_id, "at": watching.at}
    assert (await world.run(research_today, **count))[0] == 1
    (row,) = await world.rows(select(tasks))
    copy = {**row._mapping, "id": "task_2", "number": 2}
    await world.run(lambda c: c.execute(tasks.insert().values(copy)))
    assert (await world.run(research_today, **count))[0] == 2
    await world.run(lambda c: c.execute(update(tasks).values(call_id="another run's")))
    assert await world.run(research_today, **count) == (0, 0)
    await world.run(
        lambda c: c.execute(update(tasks).values(call_id="heartbeat", parent_job_id=claim.id + 1))
    )
    assert await world.run(research_today, **count) == (0, 0), (
        "a call of that name in another job is no heartbeat's"
    )


async def test_outside_of_its_hours_it_does_not_even_look(world: World) -> None:
    await question(world)
    watching = await watch(world)
    hour = int(watching.at // 3600 + 2) % 23
    closed = ON.model_copy(update={"hours": f"{hour:02}:00-{hour + 1:02}:00"})
    assert await found(world, replace(watching, settings=closed)) == []


async def test_a_period_that_begins_at_night_is_looked_at_in_the_morning(
    world: World, tmp_path: Path
) -> None:
    await question(world)
    (tmp_path / "gofer").mkdir()
    at = await world.database.read(clock)
    hour = int(at // 3600) % 24
    hours = f"{hour:02}:00-{hour + 1:02}:00"
    settings = f'[heartbeat]\nenabled = true\nevery = 1440\nhours = "{hours}"\n'
    (tmp_path / "gofer" / "agent.toml").write_text(settings)
    midnight = at - at % DAY
    moments = [midnight + 3600 * ((hour + 12) % 24 if hour >= 12 else 0), at]
    beats = Beats(world.database, AgentFiles(tmp_path), LocalSignals(), "UTC", now=lambda _: moments.pop(0))
    assert await beats.beat() == (1 if hour == 0 else 0), "closed"
    assert await beats.beat() == (0 if hour == 0 else 1), "open, in the same period"


async def test_what_belongs_to_no_conversation_needs_a_home(world: World) -> None:
    await world.say(room="kitchen")
    for claim in await world.claim(10):
        await world.end(claim)
    items = "- every 1h: look\n"
    assert await found(world, await watch(world, items=items)) == []
    (where,) = {row.conversation_id for row in await world.rows(select(participants))}
    named = ON.model_copy(update={"conversation": where})
    assert await found(world, await watch(world, named, items)) == [("item.due", where)]
    gone = ON.model_copy(update={"conversation": "conv_gone"})
    assert await found(world, await watch(world, gone, items)) == []


async def test_a_connection_in_trouble_is_news_once_a_day_and_not_while_nobody_reacts(world: World) -> None:
    await world.say(room="kitchen")
    for claim in await world.claim(10):
        await world.end(claim)
    await world.submit(f"poll:{CONNECTION}", kind="poll", delay=1000)
    await world.run(
        lambda c: c.execute(update(jobs).where(jobs.c.kind == "poll").values(reason="telegram.conflict"))
    )
    (where,) = {row.conversation_id for row in await world.rows(select(participants))}
    named = ON.model_copy(update={"conversation": where})
    watching = await watch(world, named)
    assert await beat(world, watching) == 1
    assert await beat(world, watching) == 0
    (row,) = await world.rows(select(heartbeat_findings))
    await world.run(settle, ids=[row.id], state=NUDGED, at=watching.at)
    tomorrow = replace(watching, at=watching.at + DAY)
    assert await found(world, tomorrow) == [], "nobody has said anything since"
    await world.say("I saw it.", room="kitchen", addressed=False)
    known = messages.c.author == "ann"
    await world.run(
        lambda c: c.execute(update(messages).where(known).values(trust="member", created_at=watching.at + 60))
    )
    assert await found(world, tomorrow) == [("connection.unhealthy", where)]


async def test_goals_that_wait_are_late_or_do_not_move_are_found(world: World) -> None:
    await world.say(room="kitchen")
    for claim in await world.claim(10):
        await world.end(claim)
    (where,) = {row.conversation_id for row in await world.rows(select(participants))}
    blocked, late, stalled, paused, fresh = [await new_goal(world, where, f"goal {n}") for n in range(5)]
    watching = await watch(world)

    def change(connection: Connection) -> None:
        for goal, values in {
            blocked: {"state": "blocked", "changed_at": watching.at - 7200},
            stalled: {"state": "active", "changed_at": watching.at - 7 * 3600},
            paused: {"state": "paused", "changed_at": watching.at - 7 * DAY},
            fresh: {"state": "blocked", "changed_at": watching.at - 60},
        }.items():
            connection.execute(update(goals).where(goals.c.id == goal).values(**values))
        row_macs.update(connection, goals, goals.c.id == late, {"until": watching.at - 60})

    await world.run(change)
    seen = await world.database.read(lambda c: look(c, watching))
    assert {(each.code, each.subject) for each in seen} == {
        ("goal.blocked", f"goal:{blocked}"),
        ("goal.overdue", f"goal:{late}"),
        ("goal.stalled", f"goal:{stalled}"),
    }
    assert await beat(world, watching) == 1
    (job,) = await world.rows(select(jobs).where(jobs.c.kind == "heartbeat"))
    rows = await world.database.read(lambda c: findings_of(c, job.id))
    told = await world.database.read(lambda c: explain(c, world.vault, rows, (), "UTC"))
    assert any("A goal waits for somebody: 'goal 0'. 0 of 0 tasks are done." in each.text for each in told)
    done = update(goals).values(state="done", finished_at=watching.at)
    await world.run(lambda c: c.execute(done))
    assert await world.database.read(lambda c: explain(c, world.vault, rows, (), "UTC")) == [], "it is over"


async def test_a_switched_off_agent_and_one_whose_file_is_gone_do_nothing(
    world: World, tmp_path: Path
) -> None:
    await question(world)
    folder = tmp_path / "gofer"
    folder.mkdir()
    beats = Beats(world.database, AgentFiles(tmp_path), LocalSignals(), "UTC")
    assert await beats.beat() == 0
    (folder / "agent.toml").write_text("[heartbeat]\nenabled = false\n")
    assert await beats.beat() == 0
    (folder / "agent.toml").write_text("[heartbeat]\nenabled = tru\n")
    assert await beats.beat() == 0, "what makes no sense leaves the last good version in force: off"
    (folder / "agent.toml").write_text('[heartbeat]\nenabled = true\nhours = "00:00-24:00"\n')
    assert await beats.beat() == 1
    (folder / "agent.toml").unlink()
    (folder / ".agent.good.json").unlink()
    folder.rmdir()
    assert await beats.beat() == 0


async def test_a_thousand_questions_are_taken_in_turns(world: World) -> None:
    for number in range(25):
        await question(world, f"room-{number}")
    watching = await watch(world)
    assert await beat(world, watching) == 20
    assert await beat(world, watching) == 5
    assert await beat(world, watching) == 0
