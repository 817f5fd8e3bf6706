"""Intake's one transaction: repeats, routes, edits, stops; the same on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, select

from gofer.identity import grant_role
from gofer.intake.admit import unread as read_by_run
from gofer.intake.routing import UNHEARD, event_matches
from gofer.jobs.control import cancel_conversation
from gofer.jobs.kinds import RECEPTION
from gofer.jobs.outcome import Cancel, Dead, Done
from gofer.runs.agent_files import AgentSpec, RouteSettings
from gofer.runs.agent_sync import sync_agents
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key
from gofer.store.messages import open_message
from gofer.store.tables import (
    agents,
    bindings,
    connections,
    conversations,
    deliveries,
    events,
    jobs,
    messages,
    routes,
)
from support.world import CONNECTION, World


async def texts(world: World) -> list[str]:
    """What was said, in order."""

    def read(c: Connection) -> list[str]:
        rows = c.execute(select(messages).order_by(messages.c.conversation_id, messages.c.seq)).all()
        keys = [conversation_key(c, world.vault, row.conversation_id) for row in rows]
        return [
            open_message(key, row.conversation_id, row.seq, row.sealed).text
            for key, row in zip(keys, rows, strict=True)
        ]

    return await world.database.read(read)


async def test_a_message_becomes_a_job_in_one_step(world: World) -> None:
    taken = await world.say("hello")
    assert (taken.result, taken.seq, taken.woke) == ("accepted", 1, True)
    (job,) = await world.answer_jobs()
    (participant,) = await world.participants()
    assert (job.state, job.lane, job.covers_from) == ("ready", participant.id, 0)
    assert (participant.read_seq, participant.wake_seq) == (0, 1)


async def test_talk_that_addresses_nobody_is_kept_and_wakes_nobody(world: World) -> None:
    assert not (await world.say("just chatting", addressed=False)).woke
    assert await texts(world) == ["just chatting"]
    assert await world.answer_jobs() == []


async def test_a_second_message_joins_the_job_that_is_there(world: World) -> None:
    await world.say("one")
    assert not (await world.say("two")).woke
    assert len(await world.answer_jobs()) == 1
    assert (await world.participants())[0].wake_seq == 2


async def test_a_hundred_identical_deliveries_at_once_are_one(world: World) -> None:
    arrival = world.arrival(id_="same")
    taken = await asyncio.gather(*(world.deliver(arrival) for _ in range(100)))
    assert sorted(each.result for each in taken) == ["accepted"] + ["repeat"] * 99
    counts = [await world.count(table) for table in (deliveries, messages, jobs, conversations, bindings)]
    assert counts == [1, 1, 1, 1, 1]


async def test_many_at_once_in_a_new_place_make_one_conversation(world: World) -> None:
    await asyncio.gather(*(world.say(f"hello {n}") for n in range(20)))
    assert await world.count(conversations) == 1
    rows = await world.rows(select(messages.c.seq).order_by(messages.c.seq))
    assert [row.seq for row in rows] == list(range(1, 21))


async def test_one_id_on_two_connections_is_two_deliveries(world: World) -> None:
    other = await world.connect("other")
    results = [(await world.say(id_="7", connection_id=via)).result for via in (CONNECTION, other)]
    assert results == ["accepted", "accepted"]


@pytest.mark.parametrize(
    ("window", "later", "result"), [(60, 0, "repeat"), (60, 61, "accepted"), (0, 0, "accepted")]
)
async def test_an_equal_body_is_a_repeat_only_where_and_while_that_is_wanted(
    world: World, window: float, later: float, result: str
) -> None:
    await world.say("run again", same_body_window=window)
    await world.pass_time(later)
    assert (await world.say("run again", same_body_window=window)).result == result


async def test_equal_bodies_at_once_are_one(world: World) -> None:
    taken = await asyncio.gather(*(world.say("same", same_body_window=60) for _ in range(20)))
    assert sorted(each.result for each in taken) == ["accepted"] + ["repeat"] * 19


async def test_a_repeat_of_a_message_whose_job_died_runs_it_again(world: World) -> None:
    await world.say(id_="d1")
    await world.end(await world.claim_one(), Dead("hopeless"))
    taken = await world.say(id_="d1")
    assert (taken.result, taken.woke) == ("redriven", True)
    again = await world.claim_one()
    assert (again.covers_from, again.covers_to) == (0, 1)
    await world.end(again, Done(included_to=1))
    assert (await world.say(id_="d1")).result == "repeat"


async def test_a_repeat_redrives_each_agent_that_gave_up(world: World) -> None:
    await world.agent("second")
    await world.say(id_="d1")
    first, second = await world.claim(limit=2)
    await world.end(first, Dead("hopeless"))
    await world.end(second, Done(included_to=1))
    assert (await world.say(id_="d1")).result == "redriven"
    assert await world.states(first.id, second.id) == ["ready", "done"]


async def test_a_redriven_job_waits_its_turn_behind_newer_work(world: World) -> None:
    await world.say(id_="d1")
    dead = await world.claim_one()
    await world.end(dead, Dead("hopeless"))
    await world.say("newer")
    await world.say(id_="d1")
    assert await world.states(dead.id) == ["blocked"]
    await world.answer(to=2)
    assert (await world.claim_one()).id == dead.id


# Several agents and their routes.


async def test_several_agents_hear_one_conversation_each_at_its_own_pace(world: World) -> None:
    await world.agent("second")
    await world.say()
    first, _ = await world.claim(limit=5)
    await world.end(first, Done(included_to=1))
    assert sorted(row.read_seq for row in await world.participants()) == [0, 1]


@pytest.mark.parametrize(("trigger", "jobs_made"), [("mention", 2), ("label", 1), ("any", 1)])
async def test_a_route_asks_for_its_trigger(world: World, trigger: str, jobs_made: int) -> None:
    await world.agent("called by name", trigger="mention")
    await world.say(trigger=trigger)
    assert len(await world.answer_jobs()) == jobs_made
    assert len(await world.participants()) == jobs_made


async def test_talk_that_addresses_nobody_is_heard_by_all_who_could_be_asked_about_it(world: World) -> None:
    await world.agent("second", trigger="mention")
    await world.say(addressed=False)
    assert len(await world.participants()) == 2


async def test_one_agent_answers_though_the_routes_of_two_fit(world: World) -> None:
    await world.agent("second", kind="route")
    await world.say()
    (job,) = await world.answer_jobs()
    name = select(agents.c.name).where(agents.c.id == job.agent_id)
    assert await world.run(lambda c: c.execute(name).scalar()) == "gofer"


@pytest.mark.parametrize(
    ("chosen", "scribe", "answers"),
    [
        (None, AgentSpec(name="scribe"), "gofer"),
        (None, AgentSpec(name="scribe", routes=(RouteSettings(),)), "scribe"),
        ("helper", AgentSpec(name="scribe", routes=(RouteSettings(),)), "helper"),
        ("helper", AgentSpec(name="scribe", routes=(RouteSettings(event="message"),)), "scribe"),
    ],
)
async def test_who_answers_when_there_are_several_agents(
    world: World, chosen: str | None, scribe: AgentSpec, answers: str
) -> None:
    specs = [AgentSpec(name="gofer"), AgentSpec(name="helper"), scribe]

    def settle(c: Connection) -> None:
        row_macs.update(c, connections, connections.c.id == CONNECTION, {"agent": chosen})
        sync_agents(c, FIRST_WORKSPACE, specs)

    await world.run(settle)
    await world.say(event="message")
    (job,) = await world.answer_jobs()
    name = select(agents.c.name).where(agents.c.id == job.agent_id)
    assert await world.run(lambda c: c.execute(name).scalar()) == answers


async def test_the_agent_chosen_for_a_conversation_answers_though_no_agent_has_a_route(world: World) -> None:
    specs = [AgentSpec(name="gofer", default=False), AgentSpec(name="helper")]
    await world.run(lambda c: sync_agents(c, FIRST_WORKSPACE, specs))
    await world.say()
    assert await world.answer_jobs() == []
    helper = select(agents.c.id).where(agents.c.name == "helper").scalar_subquery()
    await world.run(lambda c: c.execute(conversations.update().values(agent_id=helper)))
    await world.say("and now?")
    assert len(await world.answer_jobs()) == 1


async def test_a_message_that_fits_no_route_is_told_to_be_unheard_once(world: World) -> None:
    await world.run(lambda c: c.execute(routes.delete()))
    await world.agent("issues only", event="issue.*", kind="route")
    for text in ("anybody there?", "hello?"):
        assert (await world.say(text)).result == "accepted"
    assert await world.answer_jobs() == []
    unheard = await world.rows(select(events.c.data).where(events.c.kind == UNHEARD))
    assert [each.data["seq"] for each in unheard] == [1, 2]
    told = await world.rows(select(jobs.c.payload).where(jobs.c.kind == RECEPTION))
    assert [each.payload for each in told] == [{"seq": 1, "unheard": True}]


async def test_a_route_hears_only_its_events(world: World) -> None:
    await world.agent("issues only", event="issue.*")
    await world.say(event="message")
    await world.say(event="issue.opened")
    assert [row.wake_seq for row in await world.participants()].count(2) == 2
    assert len(await world.participants()) == 2


@pytest.mark.parametrize(
    ("pattern", "event", "matches"),
    [("*", "x", True), ("issue.*", "issue.opened", True), ("issue.*", "push", False), ("push", "push", True),
     ("push", "pushed", False)],
)  # fmt: skip
def test_patterns_of_events(pattern: str, event: str, matches: bool) -> None:
    assert event_matches(pattern, event) is matches


async def test_an_agent_that_joins_late_owes_nothing_for_the_past(world: World) -> None:
    await world.say("before")
    late = await world.agent("late")
    await world.say("after")
    (joined,) = [row for row in await world.participants() if row.agent_id == late]
    assert (joined.read_seq, joined.wake_seq) == (1, 2)


# Edits.


async def test_an_edit_replaces_what_nobody_has_read(world: World) -> None:
    await world.say("helo", external_id="m1")
    taken = await world.say("hello", external_id="m1", replaces_id="m1")
    assert taken.seq == 1
    assert await texts(world) == ["hello"]
    assert len(await world.answer_jobs()) == 1


async def test_an_edit_of_what_was_read_is_kept_and_wakes_nobody(world: World) -> None:
    await world.say("helo", external_id="m1")
    await world.run(lambda c: c.execute(messages.update().values(admitted_at=now(), trust="member")))
    await world.answer(to=1)
    taken = await world.say("hello", external_id="m1", replaces_id="m1")
    assert taken.seq is not None
    assert taken.seq > 1
    assert not taken.woke


async def test_an_edit_of_what_was_given_up_on_unread_is_answered(world: World) -> None:
    await world.say("helo", external_id="m1")
    await world.end(await world.claim_one(), Dead("hopeless"))
    assert (await world.say("hello", external_id="m1", replaces_id="m1")).woke
    assert len(await world.claim(limit=5)) == 1


async def test_an_edit_of_something_unknown_is_a_new_message(world: World) -> None:
    assert (await world.say("hello", replaces_id="never seen")).result == "accepted"
    assert await texts(world) == ["hello"]


# Stop and new.


async def pair(world: World, subject: str) -> None:
    await world.run(
        grant_role,
        workspace_id=FIRST_WORKSPACE,
        integration="hello",
        subject=subject,
        name="",
        role="member",
        by="test",
    )


@pytest.mark.parametrize(("who", "stopped"), [("ann", True), ("bob", True), ("eve", False)])
async def test_whoever_asked_or_is_known_may_stop_and_nobody_else(
    world: World, who: str, stopped: bool
) -> None:
    await pair(world, "bob")
    await world.say("a long task", by="ann")
    await world.claim_one()
    await world.say("/stop", by=who, control="stop")
    (job,) = await world.answer_jobs()
    assert job.cancel_requested is stopped


async def test_a_stop_reaches_every_agent_and_what_waits_its_turn(world: World) -> None:
    await world.agent("second")
    taken = await world.say(id_="d1")
    for claim in await world.claim(limit=2):
        await world.end(claim, Dead("hopeless"))
    await world.say("newer")
    await world.say(id_="d1")  # both dead jobs are redriven behind the newer ones
    assert await world.run(cancel_conversation, conversation_id=taken.conversation_id, by="ann") == 4
    states = sorted(row.state for row in await world.answer_jobs())
    assert states == ["cancelled", "cancelled", "ready", "ready"]


async def test_a_stop_where_nothing_runs_starts_nothing(world: World) -> None:
    await pair(world, "ann")
    assert not (await world.say("/stop", by="ann", control="stop")).woke
    assert await world.answer_jobs() == []


@pytest.mark.parametrize("work", ["none", "ready", "running", "answered meanwhile"])
async def test_new_ends_what_was_begun_and_what_is_said_next_has_a_job_of_its_own(
    world: World, work: str
) -> None:
    await pair(world, "ann")
    await world.say("old times")
    claim = await world.claim_one() if work != "ready" else None
    if work == "none" and claim is not None:
        await world.end(claim, Done(included_to=1))
    await world.say("never read", addressed=work != "none")
    await world.say("/new", control="new", command="new", event="command")
    await world.say("/new", control="new", command="new", event="command", by="eve")
    await world.say("fresh")
    if claim is None:
        claim = await world.claim_one()
        assert claim.cancel_requested
    if work != "none":
        unread = await world.run(read_by_run, vault=world.vault, claim=claim, after=0)
        assert [one.message.text for one in unread] == ["old times", "never read"]
        await world.end(
            claim, Done(included_to=1) if work == "answered meanwhile" else Cancel("cancelled", (), 1)
        )
    (participant,) = await world.participants()
    assert participant.epoch_seq == 3, "nobody else's /new counts before it is known who they are"
    fresh = await world.claim_one()
    unread = await world.run(read_by_run, vault=world.vault, claim=fresh, after=fresh.covers_from)
    assert [one.message.text for one in unread] == ["fresh"]
    if work in ("ready", "running"):
        (first, _) = await world.answer_jobs()
        assert (first.state, first.covers_to) == ("cancelled", 3)


async def test_text_that_a_database_would_refuse_is_stored(world: World) -> None:
    awkward = "nul \x00 and \U0001f980 and \u202e"
    await world.say(awkward, title=awkward, by="a\x00b")
    assert await texts(world) == [awkward]
