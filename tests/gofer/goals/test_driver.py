"""What becomes of a goal, pass by pass, on both databases."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
from sqlalchemy import select, update

from gofer.errors import Conflict, Malformed, NotFound, TooOften
from gofer.goals import records
from gofer.goals.driver import AGAIN, APPROVE, FINISH, REFUSE, YES, Ask, GoalEnd, Pause, WaitForTasks, advance
from gofer.goals.planner import MAX_PLANNING_TRIES, MAX_REPLANS
from gofer.identity import grant_role, remove_identity
from gofer.jobs.queue import PLANNER, SERVICE, WORKER
from gofer.purge import purge_conversation
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import events, goals, jobs, questions, spends, tasks
from support.goal_bench import Bench, new_goal
from support.world import World

FAILED = {"outcome": "failed", "summary": "the door is locked"}


def found(text: str) -> dict[str, Any]:
    return {"outcome": "done", "summary": text}


async def _role(world: World, role: Literal["owner", "member"]) -> None:
    person = partial(grant_role, workspace_id=FIRST_WORKSPACE, integration="hello", subject="ann", name="Ann")
    await world.run(partial(person, role=role, by="test"))


async def test_a_goal_is_planned_done_and_reported(world: World) -> None:
    bench = await Bench.made(world)
    assert isinstance(await bench.go(), WaitForTasks)
    assert (await bench.row()).state == "planning"
    assert isinstance(await bench.planned([], [1]), WaitForTasks)
    assert await bench.states() == ["queued", "queued"]
    await bench.end_task(found("it is damp"))
    assert isinstance(await bench.go(), WaitForTasks)
    await bench.end_task(found("it is dry"))
    assert isinstance(await bench.go(), WaitForTasks), "the report is written"
    written = await bench.end_task({"outcome": "done", "summary": "The cellar is dry."})
    assert written.kind == "report"
    assert await bench.go() == GoalEnd("done")
    assert ((await bench.row()).state, await bench.states()) == ("done", ["done", "done"])
    kinds = [kind for (kind,) in await world.rows(select(events.c.kind).where(events.c.kind.like("goal.%")))]
    assert {"goal.changed", "goal.planned"} == set(kinds)


async def test_no_more_tasks_of_a_goal_run_side_by_side_than_allowed(world: World) -> None:
    bench = await Bench.made(world, parallel=2)
    await bench.go()
    await bench.planned([], [], [], [])
    started = [row for row in await world.rows(select(tasks)) if row.kind == "research" and row.job_id]
    assert len(started) == 2
    await bench.end_task(found("one"))
    await bench.go()
    live = await world.rows(select(jobs.c.id).where(jobs.c.kind == "task", jobs.c.state == "ready"))
    assert len(live) == 2


async def test_a_failed_task_changes_the_plan_and_what_is_left_out_is_dropped(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [1], [2])
    await bench.end_task(FAILED, "failed")
    await bench.go()
    assert "the door is locked" in await bench.told_to_planner()
    await bench.planned([], keep=())
    assert await bench.states() == ["failed", "dropped", "dropped", "queued"]
    await bench.end_task(found("through the window"))
    await bench.go()
    await bench.end_task(found("Done, through the window."))
    assert await bench.go() == GoalEnd("done")
    assert (await bench.row()).replans == 1


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({}, GoalEnd("failed", "tasks")),
        ({"without": (1,)}, GoalEnd("done")),
        ({"keep": (3,)}, GoalEnd("failed", "tasks")),
    ],
    ids=["given up", "not needed", "the rest kept"],
)
async def test_what_did_not_work_and_is_not_made_up_for_leaves_the_goal_failed(
    world: World, change: dict[str, Any], ends: GoalEnd
) -> None:
    bench = await Bench.made(world, parallel=1)
    await bench.go()
    await bench.planned([], [], [])
    await bench.end_task(FAILED, "failed")
    await bench.go()
    step = await bench.planned(**change)
    while isinstance(step, WaitForTasks):
        await bench.end_task(found("fine"))
        step = await bench.go()
    assert step == ends
    assert ((await bench.row()).state, (await bench.row()).reason) == (ends.state, ends.reason)
    ended = select(events.c.data).where(events.c.kind == "goal.changed").order_by(events.c.id.desc()).limit(1)
    ((told,),) = await world.rows(ended)
    assert (told["state"], told["reason"]) == (ends.state, ends.reason)


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({}, "done"),
        ({"replaces": (1, 2)}, "done"),
        ({"replaces": (2,)}, "failed"),
        ({"kind": "status"}, "failed"),
    ],
    ids=["says nothing", "replaces both", "replaces one", "only counts"],
)
async def test_a_new_task_makes_up_for_what_it_replaces(
    world: World, change: dict[str, Any], ends: str
) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [], [])
    await bench.end_task(FAILED, "failed")
    await bench.end_task(FAILED, "failed")
    await bench.go()
    step = await bench.planned([], **change)
    while isinstance(step, WaitForTasks):
        await bench.end_task(found("fine"))
        step = await bench.go()
    assert isinstance(step, GoalEnd)
    assert step.state == ends


async def test_a_new_task_that_is_dropped_makes_up_for_nothing(world: World) -> None:
    bench = await Bench.made(world, parallel=1)
    await bench.go()
    await bench.planned([], [])
    await bench.end_task(FAILED, "failed")
    await bench.go()
    await bench.planned([])
    await bench.tell("leave it")
    await bench.go()
    step = await bench.planned()
    while isinstance(step, WaitForTasks):
        await bench.end_task(found("fine"))
        step = await bench.go()
    assert await bench.states() == ["failed", "done", "dropped"]
    assert step == GoalEnd("failed", "tasks")


async def test_a_plan_keeps_what_has_begun_while_it_was_made(world: World) -> None:
    bench = await Bench.made(world, parallel=1)
    await bench.go()
    await bench.planned([], [])
    await bench.tell("hurry")
    await bench.go()
    await bench.end_task(found("it is damp"), pools=(WORKER,))
    await bench.go()
    await bench.planned([], keep=(2,))
    assert await bench.states() == ["done", "queued", "queued"], "the plan is taken"


async def test_after_five_changes_of_the_plan_a_person_is_asked(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    for _ in range(MAX_REPLANS):
        await bench.end_task(FAILED, "failed")
        await bench.go()
        await bench.planned([])
    await bench.end_task(FAILED, "failed")
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert "5 times" in asked.text
    assert (await bench.row()).state == "blocked"
    await bench.reply(AGAIN)
    assert isinstance(await bench.go(), WaitForTasks), "with consent it plans again"
    await bench.planned([])
    assert (await bench.row()).state == "active"


async def test_a_goal_whose_person_has_enough_ends_with_what_there_is(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    for number in range(MAX_PLANNING_TRIES):
        await bench.end_task({"outcome": "failed", "summary": "words, no plan"}, "failed")
        step = await bench.go()
        assert isinstance(step, Ask if number == MAX_PLANNING_TRIES - 1 else WaitForTasks)
    assert (await bench.row()).state == "blocked"
    await bench.reply(FINISH)
    assert await bench.go() == GoalEnd("failed", "plan.missing")
    assert (await bench.row()).state == "failed"


async def test_what_the_planner_asks_reaches_it_with_the_answer(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    question = {"outcome": "blocked", "question": "Which cellar?", "choices": ["left", "right"]}
    await bench.end_task(question, "blocked")
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert (asked.text, asked.choices) == ("Which cellar?", ("left", "right"))
    await bench.reply("left")
    assert isinstance(await bench.go(), WaitForTasks)
    told = await bench.told_to_planner()
    assert "Which cellar?" in told
    assert "left" in told
    await bench.planned([])
    assert (await bench.row()).state == "active"


async def test_what_a_task_asks_is_asked_and_the_answer_changes_the_plan(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    await bench.end_task({"outcome": "blocked", "question": "May I force the lock?"}, "blocked")
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert asked.text == "May I force the lock?"
    await bench.reply("no, use the key")
    await bench.go()
    assert "use the key" in await bench.told_to_planner()


async def test_while_one_task_asks_the_others_go_on(world: World) -> None:
    bench = await Bench.made(world, parallel=2)
    await bench.go()
    await bench.planned([], [], [], [1])
    await bench.end_task({"outcome": "blocked", "question": "May I force the lock?"}, "blocked")
    assert isinstance(await bench.go(), Ask)
    assert await _begun(world, bench) == [1, 2, 3], "a place became free, and the next takes it"
    for _ in range(2):
        await bench.end_task(found("fine"))
        assert isinstance(await bench.go(), Ask)
    assert await bench.states() == ["blocked", "done", "done", "queued"]
    open_ones = select(questions.c.id).where(questions.c.answered_at.is_(None))
    assert len(await world.rows(open_ones)) == 1, "it is asked once"


async def _begun(world: World, bench: Bench) -> list[int]:
    query = select(tasks.c.number).where(tasks.c.goal_id == bench.goal_id, tasks.c.number > 0)
    rows = await world.rows(query.where(tasks.c.job_id.is_not(None)).order_by(tasks.c.number))
    return [number for (number,) in rows]


async def test_words_of_two_people_reach_the_planner_in_order_and_with_their_trust(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    assert await bench.tell("paint it red", by="bob", trust="member") == "told"
    assert await bench.tell("paint it blue", by="ann") == "told"
    assert isinstance(await bench.go(), WaitForTasks)
    told = await bench.told_to_planner()
    assert told.index("bob (member): paint it red") < told.index("ann (owner): paint it blue")
    await bench.end_task(found("nothing painted yet"))
    await bench.planned([], keep=())
    assert (await bench.row()).replans == 1, "both orders change the plan once"


async def test_a_paused_goal_begins_nothing_and_goes_on_when_resumed(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [1])
    await world.run(partial(records.pause, goal_id=bench.goal_id, by="ann"))
    assert isinstance(await bench.go(), WaitForTasks), "what runs goes on to its end"
    await bench.end_task(found("one"))
    assert isinstance(await bench.go(), Pause)
    assert await bench.states() == ["done", "queued"]
    assert await bench.idle()
    other = await new_goal(world, (await bench.row()).conversation_id)
    with pytest.raises(Conflict, match="not paused"):
        await world.run(partial(records.resume, goal_id=other, by="x"))
    await world.run(partial(records.resume, goal_id=bench.goal_id, by="ann"))
    claimed = {
        claim.payload["goal"]: claim for claim in await world.claim(9, pool=SERVICE) if claim.kind == "goal"
    }
    _, step = await world.run(
        partial(advance, vault=world.vault, claim=claimed[bench.goal_id], rules=bench.rules)
    )
    assert isinstance(step, WaitForTasks)


async def test_a_paused_goal_hears_the_answer_to_its_question(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    await bench.end_task({"outcome": "blocked", "question": "May I force the lock?"}, "blocked")
    assert isinstance(await bench.go(), Ask)
    await world.run(partial(records.pause, goal_id=bench.goal_id, by="ann"))
    assert isinstance(await bench.go(), Pause)
    assert await bench.tell("no, use the key") == "answered"
    assert await bench.tell("and mind the step") == "told"
    await world.run(partial(records.resume, goal_id=bench.goal_id, by="ann"))
    assert isinstance(await bench.go(), WaitForTasks)
    told = await bench.told_to_planner()
    assert "use the key" in told
    assert "mind the step" in told


async def test_a_cancelled_goal_stops_its_tasks_and_ends_once(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [], [])
    running = await world.claim_one(pool=WORKER)
    await world.run(partial(records.cancel, goal_id=bench.goal_id, by="ann"))
    assert await bench.go() == GoalEnd("cancelled", "cancelled")
    assert await bench.states() == ["dropped", "dropped", "dropped"]
    assert (await world.job(running.id)).cancel_requested
    with pytest.raises(Conflict, match="ended already"):
        await world.run(partial(records.cancel, goal_id=bench.goal_id, by="ann"))


async def test_nothing_takes_back_a_cancel_that_the_driver_has_not_seen(world: World) -> None:
    first = await Bench.made(world)
    second = Bench(world, await new_goal(world, (await first.row()).conversation_id), first.rules)
    await world.run(partial(records.pause, goal_id=second.goal_id, by="ann"))
    for bench in (first, second):
        await world.run(partial(records.cancel, goal_id=bench.goal_id, by="ann"))
        for verb in (records.pause, records.resume):
            with pytest.raises(Conflict, match="is being cancelled"):
                await world.run(partial(verb, goal_id=bench.goal_id, by="ben"))
        assert await world.run(partial(records.cancel, goal_id=bench.goal_id, by="ben")) == "cancelled"
    assert [await first.go(), await first.go()] == [GoalEnd("cancelled", "cancelled")] * 2
    assert [(await bench.row()).state for bench in (first, second)] == ["cancelled", "cancelled"]


async def test_a_cancelled_goal_asks_nothing_more(world: World) -> None:
    bench = await Bench.made(world, needs_approval=True)
    await bench.go()
    assert isinstance(await bench.planned([]), Ask)
    await world.run(partial(records.cancel, goal_id=bench.goal_id, by="ann"))
    assert await bench.go() == GoalEnd("cancelled", "cancelled")
    assert not await world.rows(select(questions.c.id).where(questions.c.answered_at.is_(None)))


async def test_words_that_are_too_long_are_refused_and_never_cut(world: World) -> None:
    with pytest.raises(Malformed, match="at most 8000"):
        await Bench.made(world, text="$ echo " + "a" * 8000)
    bench = await Bench.made(world)
    say = partial(records.tell, vault=world.vault, goal_id=bench.goal_id, by="ann", name="Ann", trust="owner")
    with pytest.raises(Malformed, match="at most 4000"):
        await world.run(partial(say, text="b" * 4001))


async def test_work_begins_when_an_owner_has_approved_the_plan(world: World) -> None:
    bench = await Bench.made(world, needs_approval=True)
    await bench.go()
    asked = await bench.planned([], [1])
    assert isinstance(asked, Ask)
    assert asked.of_owners
    assert "step 1" in asked.text
    assert not [row for row in await world.rows(select(tasks)) if row.kind == "research" and row.job_id]
    await bench.reply(APPROVE)
    assert isinstance(await bench.go(), WaitForTasks)
    assert (await bench.row()).state == "active"


async def test_a_refused_plan_ends_the_goal(world: World) -> None:
    bench = await Bench.made(world, needs_approval=True)
    await bench.go()
    await bench.planned([])
    await bench.reply(REFUSE)
    assert await bench.go() == GoalEnd("cancelled", "refused")


async def test_a_goal_that_an_agent_suggests_begins_with_the_persons_consent(world: World) -> None:
    bench = await Bench.made(world, asked={"consent": True})
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert "tidy the cellar" in asked.text
    assert not await world.rows(select(tasks))
    await bench.reply(YES)
    assert isinstance(await bench.go(), WaitForTasks)
    assert (await bench.row()).state == "planning"


async def test_pausing_and_resuming_is_no_consent(world: World) -> None:
    bench = await Bench.made(world, asked={"consent": True})
    await bench.go()
    await world.run(partial(records.pause, goal_id=bench.goal_id, by="ann"))
    assert isinstance(await bench.go(), Pause)
    await world.run(partial(records.resume, goal_id=bench.goal_id, by="ann"))
    assert isinstance(await bench.go(), Ask)
    assert not await world.rows(select(tasks))
    await bench.reply("No")
    assert await bench.go() == GoalEnd("cancelled", "declined")


async def test_where_several_agents_hear_the_goal_asks_who_takes_it(world: World) -> None:
    sailor = await world.agent("sailor")
    bench = await Bench.made(world, asked={"agents": ("gofer", "sailor")})
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert asked.choices == ("gofer", "sailor")
    await bench.reply("sailor")
    await bench.go()
    assert (await bench.row()).agent_id == sailor
    assert {row.agent_id for row in await world.rows(select(tasks))} == {sailor}
    assert {row.agent_id for row in await world.rows(select(jobs).where(jobs.c.kind == "task"))} == {sailor}


async def test_a_goal_ends_when_whoever_asked_lost_their_role(world: World) -> None:
    await _role(world, "owner")
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [])
    gone = partial(remove_identity, workspace_id=FIRST_WORKSPACE, integration="hello", subject="ann")
    await world.run(gone)
    await bench.end_task(found("one"))
    assert await bench.go() == GoalEnd("cancelled", "role.lost")
    assert await bench.states() == ["done", "dropped"]


async def test_a_goal_is_woken_as_soon_as_whoever_asked_has_lost_their_role(world: World) -> None:
    await _role(world, "owner")
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [])
    running = await world.claim_one(pool=WORKER)
    assert await world.run(partial(records.wake_ended, vault=world.vault)) == 0
    gone = partial(remove_identity, workspace_id=FIRST_WORKSPACE, integration="hello", subject="ann")
    await world.run(gone)
    assert await world.run(partial(records.wake_ended, vault=world.vault)) == 1
    assert await bench.go() == GoalEnd("cancelled", "role.lost")
    assert (await world.job(running.id)).cancel_requested, "its command is stopped, too"
    assert await world.run(partial(records.wake_ended, vault=world.vault)) == 0


async def test_a_goal_ends_when_its_time_is_over_also_while_it_asks(world: World) -> None:
    bench = await Bench.made(world, needs_approval=True)
    await bench.go()
    assert isinstance(await bench.planned([]), Ask)
    late = partial(row_macs.update, table=goals, where=goals.c.id == bench.goal_id, values={"until": 1.0})
    await world.run(late)
    assert await world.run(partial(records.wake_ended, vault=world.vault)) == 1
    assert await bench.go() == GoalEnd("failed", "overdue")


async def test_a_goal_loses_trust_with_its_person_and_never_gains_any(world: World) -> None:
    await _role(world, "member")
    bench = await Bench.made(world, trust="member")
    await _role(world, "owner")
    await bench.go()
    assert (await bench.row()).trust == "member"


async def test_a_goal_of_a_purged_conversation_is_over_and_says_nothing(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([], [])
    where = (await bench.row()).conversation_id
    await world.run(lambda c: purge_conversation(c, world.vault, conversation_id=where, by="test"))
    row = await bench.row()
    assert (row.state, row.reason, row.sealed) == ("cancelled", "purged", None)
    assert await bench.states() == ["dropped", "dropped"]
    assert not await world.claim(9, pool=SERVICE)
    with pytest.raises(Conflict):
        await bench.tell("are you there?")


async def _spend(bench: Bench, micros: int) -> None:
    row = await bench.row()
    values = {"workspace_id": FIRST_WORKSPACE, "key": "k", "day": "2026-01-01", "settled": True, "model": "m"}
    of = {"goal_id": row.id, "job_id": row.job_id, "conversation_id": row.conversation_id}
    spent = spends.insert().values(**values, **of, micros=micros, background=False, agent_id=row.agent_id)
    await bench.world.run(lambda c: c.execute(spent))


async def test_a_used_up_budget_asks_before_it_spends_more(world: World) -> None:
    bench = await Bench.made(world, budget=1000)
    await bench.go()
    await bench.planned([], [1])
    await _spend(bench, 1000)
    await bench.end_task(found("dear"))
    asked = await bench.go()
    assert isinstance(asked, Ask)
    assert "budget" in asked.text
    await bench.reply(YES)
    assert isinstance(await bench.go(), WaitForTasks)
    assert (await bench.row()).budget == 2000


@pytest.mark.parametrize("why", ["failed", "told"])
async def test_a_used_up_budget_ends_nothing_that_the_planner_has_to_look_at(world: World, why: str) -> None:
    bench = await Bench.made(world, budget=1000)
    await bench.go()
    await bench.planned([])
    await _spend(bench, 1000)
    if why == "told":
        await bench.tell("the attic as well")
    await bench.end_task(*((found("dry"),) if why == "told" else (FAILED, "failed")))
    assert isinstance(await bench.go(), Ask)
    await bench.reply("yes")
    assert isinstance(await bench.go(), WaitForTasks)
    assert ("the attic as well" if why == "told" else "the door is locked") in await bench.told_to_planner()


@pytest.mark.parametrize("question", ["budget", "consent", "agent"])
async def test_words_that_are_no_answer_do_not_end_a_goal(world: World, question: str) -> None:
    asked = {"consent": {"consent": True}, "agent": {"agents": ("gofer", "sailor")}}
    await world.agent("sailor")
    bench = await Bench.made(world, budget=1000, asked=asked.get(question, {}))
    if question == "budget":
        await bench.go()
        await _spend(bench, 1000)
    assert isinstance(await (bench.planned([]) if question == "budget" else bench.go()), Ask)
    with pytest.raises(Malformed, match="Answer with one of"):
        await bench.tell("not the red one")
    assert await bench.tell(" GOFER " if question == "agent" else "yes") == "answered"
    assert isinstance(await bench.go(), WaitForTasks)


async def test_the_report_knows_what_was_said_and_done_while_it_was_written(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    await bench.end_task(found("it is damp"))
    await bench.go()
    await bench.tell("look at the attic too")
    await bench.go()
    written = await bench.end_task(found("The cellar is damp."), pools=(PLANNER, WORKER))
    assert written.kind == "report"
    await bench.go()
    await bench.planned([])
    await bench.end_task(found("it is dry"))
    assert isinstance(await bench.go(), WaitForTasks), "a new report is written"
    told = await bench.told_to("report")
    assert "it is dry" in told
    assert "look at the attic too" in told
    await bench.end_task(found("The cellar is damp, the attic is dry."))
    assert await bench.go() == GoalEnd("done")


async def test_too_many_goals_are_refused_with_a_sentence(world: World) -> None:
    bench = await Bench.made(world)
    where = (await bench.row()).conversation_id
    with pytest.raises(TooOften, match="under way already") as refused:
        await new_goal(world, where, most=1)
    assert refused.value.retry_after
    for _ in range(records.MAX_A_MINUTE - 1):
        await new_goal(world, where, most=1000)
    with pytest.raises(TooOften, match="in a minute"):
        await new_goal(world, where, most=1000)
    assert await world.count(goals) == records.MAX_A_MINUTE


async def test_nobody_takes_the_room_of_others(world: World) -> None:
    """Also goals that wait for an answer count for whoever asked, and never for half of what there is."""
    bench = await Bench.made(world)
    where = (await bench.row()).conversation_id
    for _ in range(2):
        await new_goal(world, where, most=6)
    with pytest.raises(TooOften, match="3 goals of yours") as refused:
        await new_goal(world, where, most=6)
    assert refused.value.retry_after
    for _ in range(3):
        await new_goal(world, where, most=6, asked_by="ben")
    with pytest.raises(TooOften, match="6 goals are under way"):
        await new_goal(world, where, most=6, asked_by="cay")


async def test_a_flood_of_goals_that_end_at_once_is_bounded_for_each_and_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_A_MINUTE_EACH", 3)
    monkeypatch.setattr(records, "MAX_A_MINUTE_OF_ALL", 5)
    bench = await Bench.made(world)
    where = (await bench.row()).conversation_id

    async def made_and_over(by: str) -> None:
        goal = await new_goal(world, where, asked_by=by)
        over = update(goals).where(goals.c.id == goal).values(state="done", finished_at=1.0)
        await world.run(lambda c: c.execute(over))

    for by in ("ann", "ann", "ben", "ben"):
        await made_and_over(by)
    with pytest.raises(TooOften, match="in a minute"):
        await made_and_over("ann")
    with pytest.raises(TooOften, match="in a minute"):
        await made_and_over("cay")


async def test_a_wish_is_refused_before_anything_is_kept_when_everybody_is_busy(world: World) -> None:
    await world.run(partial(records.refuse_if_full, most=1))
    await Bench.made(world)
    with pytest.raises(TooOften, match="under way"):
        await world.run(partial(records.refuse_if_full, most=1))
    await world.agent("sailor")
    await world.run(partial(records.refuse_if_full, most=1))
    with pytest.raises(TooOften):
        await world.run(partial(records.refuse_if_full, most=1, agent="gofer"))


async def test_the_same_message_makes_one_goal(world: World) -> None:
    bench = await Bench.made(world)
    where = (await bench.row()).conversation_id
    first = await new_goal(world, where, message_seq=7)
    assert await new_goal(world, where, message_seq=7) == first


async def test_a_goal_that_somebody_wrote_into_the_database_is_refused(world: World) -> None:
    bench = await Bench.made(world)
    await world.run(lambda c: c.execute(update(goals).values(trust="owner", asked_by="mallory")))
    claim = await world.claim_one(pool=SERVICE)
    with pytest.raises(Exception, match="refused"):
        await world.run(partial(advance, vault=world.vault, claim=claim, rules=bench.rules))


async def test_a_task_whose_job_died_without_a_word_has_failed(world: World) -> None:
    bench = await Bench.made(world)
    await bench.go()
    await bench.planned([])
    claim = await world.claim_one(pool=WORKER)
    await world.run(
        lambda c: c.execute(update(jobs).where(jobs.c.id == claim.id).values(state="dead", owner=None))
    )
    row = await bench.row()
    await world.run(lambda c: c.execute(update(jobs).where(jobs.c.id == row.job_id).values(state="ready")))
    await bench.go()
    assert await bench.states() == ["failed"]


async def test_there_is_no_goal_of_a_made_up_id(world: World) -> None:
    with pytest.raises(NotFound, match="gofer goals list"):
        await world.run(partial(records.find_goal, goal_id="goal_nothing"))
