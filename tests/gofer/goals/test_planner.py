"""Plans that cannot be carried out go back to the planner, with a sentence for each fault."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gofer.goals.planner import (
    MAX_TASKS,
    KnownTask,
    PlanArguments,
    plan_errors,
    planner_tools,
    planning_request,
)
from gofer.tool import ToolContext


def task(*needs: int, **values: Any) -> dict[str, Any]:
    return {"title": "look", "kind": "research", "instructions": "look there", "needs": list(needs), **values}


def made(*tasks: dict[str, Any], keep: tuple[int, ...] = (), without: tuple[int, ...] = ()) -> PlanArguments:
    given = {"reply": "", "tasks": list(tasks), "keep": list(keep), "without": list(without), "remember": []}
    return PlanArguments.model_validate(given)


def known(number: int, state: str) -> KnownTask:
    return KnownTask(number, "old", "research", state)


def test_a_good_plan_has_no_errors() -> None:
    assert not plan_errors(made(task(), task(1), task(1, 2)), [])


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ((task(2), task(1)), "wait for each other: 1, 2"),
        ((task(3), task(), task(1)), "wait for each other: 1, 3"),
        ((task(1),), "Task 1 needs itself"),
        ((task(7),), "task 7, which does not exist"),
        ((task(title="   "),), "empty title"),
        ((task(instructions=" "),), "no instructions"),
        ((), "at least one task"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_says_why(tasks: tuple[dict[str, Any], ...], says: str) -> None:
    assert says in " ".join(plan_errors(made(*tasks), []))


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([task()] * 500, "at most 20"),
        ([task(kind="magic")], "research"),
        ([task(title="")], "at least 1"),
        ([task(colour="red")], "Extra inputs"),
        ([task(needs=["1"])], "integer"),
    ],
)
def test_a_plan_of_another_shape_is_refused_by_its_schema(tasks: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        made(*tasks)


def test_nothing_is_kept_that_waits_for_what_failed_and_only_what_failed_is_done_without() -> None:
    stuck = KnownTask(3, "old", "research", "queued", needs=(2,))
    before = [known(1, "done"), known(2, "failed"), stuck]
    assert not plan_errors(made(without=(2,)), before)
    said = " ".join(plan_errors(made(keep=(3,), without=(1, 9)), before))
    assert "Task 3 cannot be kept: it needs task 2, which is failed" in said
    assert "Task 1 cannot be done without: it is done" in said
    assert not plan_errors(made(task(replaces=[2])), before)
    assert "Task 4 cannot replace task 1: it is done" in " ".join(
        plan_errors(made(task(replaces=[1])), before)
    )
    assert "Task 9 cannot be done without: there is none with that number" in said


def test_what_is_done_stays_done_when_the_plan_changes() -> None:
    before = [known(1, "done"), known(2, "queued"), known(3, "running"), known(4, "failed")]
    assert not plan_errors(made(task(1, 2, 3), keep=(2,)), before)
    said = " ".join(plan_errors(made(task(2), task(4), keep=(1, 9)), before))
    assert "Task 5 needs task 2, which is queued" in said, "it is dropped unless it is kept"
    assert "Task 6 needs task 4, which is failed" in said
    assert "Task 1 cannot be kept: it is done" in said
    assert "Task 9 cannot be kept" in said


def test_no_plan_grows_beyond_twenty_open_tasks() -> None:
    before = [known(number, "queued") for number in range(1, 16)]
    keep = tuple(range(1, 16))
    assert not plan_errors(made(*[task()] * 5, keep=keep), before)
    assert str(MAX_TASKS) in plan_errors(made(*[task()] * 6, keep=keep), before)[0]


async def test_the_planner_is_told_what_is_wrong_and_may_try_again() -> None:
    submit, ask = planner_tools([])
    bad = await submit.run(made(task(1)), ToolContext("c1"))
    assert bad.is_error
    assert "needs itself" in bad.content
    good = await submit.run(made(task()), ToolContext("c2"))
    assert good.details["task_result"]["outcome"] == "done"
    asked = await ask.run(ask.arguments(question="Which?", choices=["a", " "]), ToolContext("c3"))
    assert asked.details["task_result"] == {"outcome": "blocked", "question": "Which?", "choices": ["a"]}


def test_a_change_of_plan_shows_the_planner_results_and_words() -> None:
    done = KnownTask(1, "look", "research", "done", (), "nothing there")
    text = planning_request("find it", [done], ["Ann (owner): hurry"], replanning=True)
    assert "1. [done] look (research): nothing there" in text
    assert "- Ann (owner): hurry" in text
    assert "has to change" in text
