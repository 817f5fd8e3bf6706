"""Goals with a scripted model over real HTTP: bad plans, no plans, new words, and a stop in the model's answer."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, fault, say
from support.async_bridge import Elsewhere
from support.patience import Deadline, patience
from support.web_server import House

Script = Callable[[Mapping[str, Any]], Reply]


def step(title: str, *needs: int, kind: str = "research") -> dict[str, Any]:
    return {"title": title, "kind": kind, "instructions": f"Do {title}.", "needs": list(needs)}


def plan(*tasks: dict[str, Any], keep: tuple[int, ...] = (), remember: tuple[str, ...] = ()) -> Reply:
    given = {"reply": "On it.", "tasks": list(tasks), "keep": list(keep), "remember": list(remember)}
    return calls(call("submit_plan", **given))


def done(summary: str) -> Reply:
    return calls(call("finish_task", outcome="done", summary=summary))


class Cast:
    """A model that plays planner, workers and reporter, each by its own script."""

    def __init__(self) -> None:
        self.planner: Iterator[Reply] = iter(())
        self.worker: Script = lambda request: done("found it")
        self.asked: list[str] = []
        """What the planner was asked, run by run and turn by turn."""

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        offered = {tool["name"] for tool in request.get("tools", ())}
        if "submit_plan" in offered:
            self.asked.append(json.dumps(request["messages"], ensure_ascii=False))
            return next(self.planner)
        if "finish_task" in offered:
            return self.worker(request)
        return say("Here is what you wanted.")


class Studio:
    """A server, its model, and the owner's API."""

    def __init__(self, house: House, model: Anthropic, cast: Cast) -> None:
        self.house, self.model, self.cast = house, model, cast
        self.api = house.api(house.token(house.owner()))

    def goal(self, *replies: Reply, worker: Script | None = None, text: str = "Find the ferry") -> str:
        """Ask for a goal whose planner says this."""
        self.cast.planner = iter(replies)
        self.cast.worker = worker or (lambda request: done("found it"))
        self.cast.asked.clear()
        made = self.api.post("/goals", json={"text": text})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def until(self, goal_id: str, *states: str) -> dict[str, Any]:
        return self.when(goal_id, lambda found: found["state"] in states)

    def when(self, goal_id: str, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = Deadline(40)
        while not enough(found := dict(self.api.get(f"/goals/{goal_id}").json())):
            assert deadline.left > 0, found
            time.sleep(0.05)
        return found

    def said(self, conversation_id: str) -> list[str]:
        found = self.api.get(f"/conversations/{conversation_id}/messages").json()["messages"]
        return [str(each["text"]) for each in found]

    def report(self, goal: dict[str, Any]) -> str:
        """The one report."""
        deadline = Deadline(20)
        while not (found := [text for text in self.said(goal["conversation_id"]) if "It cost" in text]):
            assert deadline.left > 0, self.said(goal["conversation_id"])
            time.sleep(0.05)
        (report,) = found
        return report

    def until_speaking(self, asked: list[str]) -> None:
        """Until the model was asked and is in the middle of its answer."""
        deadline = Deadline(20)
        while not (asked and self.model.open_streams):
            assert deadline.left > 0, asked
            time.sleep(0.02)

    def until_silent(self) -> None:
        """Until nobody listens to the model any more."""
        deadline = Deadline(20)
        while self.model.open_streams:
            assert deadline.left > 0
            time.sleep(0.02)

    def question(self, goal: dict[str, Any]) -> dict[str, Any]:
        deadline = Deadline(20)
        while True:
            found = self.api.get("/questions").json()["questions"]
            mine = [
                each for each in found if each["job_id"] == goal["job_id"] and each["answered_at"] is None
            ]
            if mine:
                return dict(mine[0])
            assert deadline.left > 0, goal
            time.sleep(0.05)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory, elsewhere: Elsewhere) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    cast = Cast()
    model = Anthropic(cast)
    serving = loopback.serve(model.app)
    url = elsewhere.run(serving.__aenter__())
    house = House(folder, anthropic_key=model.key, anthropic_base_url=url)
    try:
        yield Studio(house, model, cast)
    finally:
        house.close()
        elsewhere.run(serving.__aexit__(None, None, None))


def test_a_goal_is_planned_worked_on_and_reported_once_with_what_it_cost(studio: Studio) -> None:
    note = "The ferry is called Astrid."
    goal = studio.until(studio.goal(plan(step("look"), step("check", 1), remember=(note,))), "done")
    assert [(task["number"], task["state"]) for task in goal["tasks"] if task["number"]] == [
        (1, "done"),
        (2, "done"),
    ]
    report = studio.report(goal)
    assert "Here is what you wanted." in report
    assert "- look" in report
    assert goal["spent"] > 0
    scope = f"conversation:{goal['conversation_id']}"
    kept = studio.api.get("/memories", params={"scope": scope}).json()["memories"]
    assert note in [memory["text"] for memory in kept]


def test_a_plan_that_cannot_be_carried_out_goes_back_with_the_reason(studio: Studio) -> None:
    too_many = plan(*[step(f"step {number}") for number in range(500)])
    goal = studio.goal(plan(step("a", 2), step("b", 1)), plan(step("a", 1)), too_many, plan(step("a")))
    assert studio.until(goal, "done")["task_count"] == 1
    told = studio.cast.asked[-1]
    assert "wait for each other" in told
    assert "needs itself" in told
    assert "at most 20" in told


def test_a_model_that_never_plans_is_asked_three_times_and_then_a_person_is(studio: Studio) -> None:
    goal_id = studio.goal(*itertools.repeat(say("What a lovely goal!"), 12))
    goal = studio.until(goal_id, "blocked")
    question = studio.question(goal)
    assert "could not make a plan" in question["question"]
    assert sum(task["kind"] == "plan" for task in goal["tasks"]) == 3
    answer = {"text": "Finish with what there is"}
    assert studio.api.post(f"/questions/{question['id']}/answer", json=answer).status_code == 202
    ended = studio.until(goal_id, "failed")
    assert "could not make a plan" in studio.report(ended)


def test_a_failed_task_is_planned_around(studio: Studio) -> None:
    def worker(request: Mapping[str, Any]) -> Reply:
        if "Do by bus." in json.dumps(request["messages"]):
            return calls(call("finish_task", outcome="failed", summary="no bus on Sundays"))
        return done("found it")

    goal = studio.until(studio.goal(plan(step("by bus")), plan(step("by boat")), worker=worker), "done")
    assert "no bus on Sundays" in studio.cast.asked[-1]
    assert goal["replans"] == 1
    assert "by bus (failed: no bus on Sundays)" in studio.report(goal)


def test_a_goal_with_a_task_that_nobody_made_up_for_is_failed_wherever_one_looks(studio: Studio) -> None:
    def worker(request: Mapping[str, Any]) -> Reply:
        if "Do by bus." in json.dumps(request["messages"]):
            return calls(call("finish_task", outcome="failed", summary="no bus on Sundays"))
        return done("found it")

    made = studio.goal(plan(step("by bus"), step("by boat"), step("by foot")), plan(), worker=worker)
    goal = studio.until(made, "failed")
    assert (goal["reason"], goal["tasks_done"]) == ("tasks", 2)
    report = studio.report(goal)
    assert "not all of it worked" in report
    assert "Here is what you wanted." in report, "what there is"
    assert "by bus (failed: no bus on Sundays)" in report
    browser = studio.house.browser()
    browser.follow(studio.house.link(studio.house.owner()))
    assert "Goal, failed" in browser.get(f"/chat/{goal['conversation_id']}").text
    assert "<code>tasks</code>" in browser.get(f"/goals/{made}").text


def test_what_a_task_asks_reaches_the_person_and_the_answer_the_planner(studio: Studio) -> None:
    def worker(request: Mapping[str, Any]) -> Reply:
        if "Do the first." in json.dumps(request["messages"]):
            return calls(call("finish_task", outcome="blocked", summary="stuck", question="North or south?"))
        return done("found it")

    goal_id = studio.goal(plan(step("the first")), plan(step("the second")), worker=worker)
    question = studio.question(studio.until(goal_id, "blocked"))
    assert question["question"] == "North or south?"
    assert studio.api.post(f"/goals/{goal_id}/messages", json={"text": "south"}).json()["state"] == "answered"
    studio.until(goal_id, "done")
    assert "south" in studio.cast.asked[-1]


def test_new_words_reach_the_planner_while_tasks_run(studio: Studio) -> None:
    waiting = Reply(done("slowly").blocks, delay=0.3)
    goal_id = studio.goal(plan(step("walk")), plan(keep=()), worker=lambda request: waiting)
    studio.when(
        goal_id, lambda found: any(task["state"] == "running" for task in found["tasks"] if task["number"])
    )
    assert studio.api.post(f"/goals/{goal_id}/messages", json={"text": "mind the dog"}).status_code == 202
    goal = studio.until(goal_id, "done")
    assert "mind the dog" in studio.cast.asked[-1]
    assert goal["replans"] == 1


def test_cancel_in_the_middle_of_the_models_answer_ends_the_goal(studio: Studio) -> None:
    asked: list[str] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        asked.append(json.dumps(request["messages"]))
        return fault("stall")

    goal_id = studio.goal(plan(step("wait for ever"), step("never", 1)), worker=worker)
    studio.until_speaking(asked)
    assert studio.api.post(f"/goals/{goal_id}/cancel").status_code == 202
    goal = studio.until(goal_id, "cancelled")
    assert [task["state"] for task in goal["tasks"] if task["number"]] == ["dropped", "dropped"]
    assert "This goal was cancelled." in studio.report(goal)
    studio.until_silent()
    assert studio.api.post(f"/jobs/{goal['job_id']}/redrive").status_code == 202
    deadline = Deadline(20)
    while studio.api.get(f"/jobs/{goal['job_id']}").json()["job"]["state"] != "cancelled":
        assert deadline.left > 0
        time.sleep(0.05)
    assert "This goal was cancelled." in studio.report(goal), "still the only one"
    assert len(asked) == 1, "the model is asked nothing more"


def test_pause_in_the_middle_of_the_models_answer_lets_it_end_and_nothing_begins(studio: Studio) -> None:
    asked: list[str] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        asked.append(json.dumps(request["messages"]))
        return Reply(done("slowly").blocks, delay=patience(0.2) if len(asked) == 1 else 0)

    goal_id = studio.goal(plan(step("one"), step("two", 1)), worker=worker)
    studio.until_speaking(asked)
    assert studio.api.post(f"/goals/{goal_id}/pause").json()["state"] == "paused"
    assert studio.model.open_streams == 1, "it was paused while the model spoke"
    studio.when(goal_id, lambda found: found["tasks_done"] == 1)
    time.sleep(0.5)
    paused = studio.until(goal_id, "paused")
    assert [task["state"] for task in paused["tasks"] if task["number"]] == ["done", "queued"]
    assert len(asked) == 1
    studio.api.post(f"/goals/{goal_id}/resume")
    goal = studio.until(goal_id, "done")
    assert [task["state"] for task in goal["tasks"] if task["number"]] == ["done", "done"]
    assert ["Do one." in asked[0], "Do two." in asked[1], len(asked)] == [True, True, 2]
    assert "- two" in studio.report(goal)


def test_the_web_chat_shows_one_card_that_changes_with_the_goal(studio: Studio) -> None:
    goal = studio.until(studio.goal(plan(step("look around"))), "done")
    studio.report(goal)
    browser = studio.house.browser()
    browser.follow(studio.house.link(studio.house.owner()))
    page = browser.get(f"/chat/{goal['conversation_id']}").text
    assert page.count(f"/goals/{goal['id']}") == 1
    assert "✓ 1. look around" in page
    assert "Goal, done" in page


def test_work_begins_when_an_owner_has_approved_and_an_operator_cannot(studio: Studio) -> None:
    oscar = studio.house.api(studio.house.token(studio.house.member("oscar", "operator", password="")))
    studio.cast.planner, studio.cast.asked = iter([plan(step("sell the house"))]), []
    made = oscar.post("/goals", json={"text": "Sell the house", "approval": True}).json()
    question = studio.question(studio.until(made["id"], "blocked"))
    assert "sell the house" in question["question"]
    answer = f"/questions/{question['id']}/answer"
    assert oscar.post(answer, json={"text": "Approve"}).status_code == 403
    waiting = studio.until(made["id"], "blocked")
    assert [task["job_id"] for task in waiting["tasks"] if task["number"]] == [None]
    assert studio.api.post(answer, json={"text": "Approve"}).status_code == 202
    studio.until(made["id"], "done")
