"""`delegate` over real HTTP: a scripted model gives tasks to workers, and what people and workers see is read off."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import jobs, replies, spends, tasks
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from support.async_bridge import Elsewhere
from support.patience import Deadline
from support.web_server import House

WORKER_MODEL = "claude-haiku-4-5"
_numbers = itertools.count(1)
Script = Callable[[Mapping[str, Any]], Reply]


def text_of(request: Mapping[str, Any]) -> str:
    return json.dumps(request["messages"], ensure_ascii=False)


def is_worker(request: Mapping[str, Any]) -> bool:
    return "You are a worker" in json.dumps(request["system"])


def tools_of(request: Mapping[str, Any]) -> set[str]:
    return {tool["name"] for tool in request["tools"]}


def last_result(request: Mapping[str, Any]) -> str:
    last = request["messages"][-1]["content"]
    if isinstance(last, str):
        return ""
    return next((json.dumps(block["content"]) for block in last if block["type"] == "tool_result"), "")


def task(kind: str, title: str, instructions: str = "Do it.") -> dict[str, str]:
    return {"kind": kind, "title": title, "instructions": instructions}


class Office:
    """A server with a real sandbox, a scripted model, and one owner."""

    def __init__(self, house: House, model: Anthropic) -> None:
        self.house, self.model = house, model
        self.parent: Script = lambda request: say("Good.")
        self.worker: Script = lambda request: calls(call("finish_task", outcome="done", summary="Done."))
        self.api = house.api(house.token(house.owner()))

    def script(self, request: Mapping[str, Any]) -> Reply:
        return (self.worker if is_worker(request) else self.parent)(request)

    def say(self, text: str, conversation: str = "") -> str:
        """Say something; returns the conversation."""
        path = f"/conversations/{conversation}/messages" if conversation else "/messages"
        said = self.api.post(path, json={"text": text})
        assert said.status_code == 202, said.text
        return str(said.json()["conversation_id"])

    def until(self, condition: Callable[[], Any], seconds: float = 30) -> Any:
        deadline = Deadline(seconds)
        while not (found := condition()):
            assert deadline.left > 0, "it never came"
            time.sleep(0.03)
        return found

    def told(self, conversation: str) -> list[str]:
        """Everything that was said to the person."""

        def read(connection: Connection) -> list[str]:
            key = conversation_key(connection, self.house.platform.vault, conversation)
            rows = connection.execute(
                select(replies).where(replies.c.conversation_id == conversation).order_by(replies.c.id)
            ).all()
            place = [(row.sealed, "reply", row.job_id, row.kind, row.part) for row in rows]
            return [str(unseal(key, *each)["text"]) for each in place]

        return self.house.read(read)

    def rows(self, query: Any) -> list[Any]:
        return self.house.read(lambda connection: list(connection.execute(query).all()))

    def tasks(self, conversation: str) -> list[Any]:
        of_it = tasks.c.conversation_id == conversation
        return self.rows(select(tasks).where(of_it).order_by(tasks.c.created_at, tasks.c.number))

    def delegate(self, *wanted: dict[str, str], then: Callable[[str], Reply] | None = None) -> Script:
        """The script of a run that delegates once and then says what came of it."""

        def script(request: Mapping[str, Any]) -> Reply:
            result = last_result(request)
            if not result:
                return calls(call("delegate", tasks=list(wanted)))
            return (then or (lambda text: say(f"Results: {text}")))(result)

        return script


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory, elsewhere: Elsewhere) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office") / "data"
    folder.mkdir(mode=0o700)
    (folder / "agents").mkdir()
    # Without a cap, or runs would wait for money that others have set aside.
    (folder / "agents" / "gofer.toml").write_text(
        'name = "gofer"\nworker_model = "anthropic/' + WORKER_MODEL + '"\n[limits]\nday_dollars = 0\n'
    )
    model = Anthropic(lambda request: made.script(request))
    serving = loopback.serve(model.app)
    url = elsewhere.run(serving.__aenter__())
    house = House(
        folder,
        anthropic_key=model.key,
        anthropic_base_url=url,
        sandbox="bubblewrap",
        spare_shells=0,
        keep_shells=False,
    )
    try:
        made = Office(house, model)
        yield made
    finally:
        house.close()
        elsewhere.run(serving.__aexit__(None, None, None))


def test_results_come_back_in_order_and_the_waiting_run_holds_no_slot(office: Office) -> None:
    begun: list[str] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        begun.append(text_of(request))
        name = next(word for word in ("alpha", "beta", "gamma") if word in text_of(request))
        summary = f"{name} is fine"
        return calls(
            call(
                "finish_task",
                outcome="done",
                summary=summary,
                artefacts=[f"{name}.txt"],
                open_points=["more"],
            ),
            delay=0.3,
        )

    office.worker = worker
    office.parent = office.delegate(*(task("research", name) for name in ("alpha", "beta", "gamma")))
    conversation = office.say("Look into three things.")
    office.until(lambda: len(begun) == 3)
    waiting = office.rows(select(jobs).where(jobs.c.conversation_id == conversation, jobs.c.kind == "answer"))
    assert [(row.state, row.owner, row.lease_until) for row in waiting] == [("waiting", None, None)]
    office.say("One more thing: hurry.", conversation)
    (answer,) = office.until(lambda: office.told(conversation))
    places = [answer.index(f"{name} is fine") for name in ("alpha", "beta", "gamma")]
    assert places == sorted(places)
    assert "alpha.txt" in answer
    assert "Open points" in answer
    assert [row.state for row in office.tasks(conversation)] == ["done"] * 3
    # The message of the meantime was kept and heard afterwards, by the same run or the next.
    office.until(lambda: any("hurry" in text_of(each) for each in office.model.received))


def test_a_worker_for_research_reads_the_files_and_can_change_nothing(office: Office) -> None:
    seen: list[tuple[set[str], str]] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        result = last_result(request)
        seen.append((tools_of(request), result))
        if not result:
            return calls(call("read", path="notes.txt"))
        if "harbour" in result:
            return calls(call("bash", command="echo gone > notes.txt"))
        return calls(call("finish_task", outcome="done", summary="It says harbour."))

    def parent(request: Mapping[str, Any]) -> Reply:
        result = last_result(request)
        if not result:
            return calls(call("write", path="notes.txt", content="the harbour gate"))
        if "State: done" in result:
            return calls(call("bash", command="cat notes.txt"))
        if "harbour gate" in result:
            return say(f"Still: {result}")
        return calls(call("delegate", tasks=[task("research", "Read notes.txt")]))

    office.worker, office.parent = worker, parent
    conversation = office.say("What do the notes say?")
    (answer,) = office.until(lambda: office.told(conversation))
    assert "harbour gate" in answer
    offered, _ = seen[0]
    assert {"read", "grep", "ls", "find", "fetch", "recall", "finish_task"} <= offered
    assert not {"bash", "write", "edit", "ask_user", "delegate", "remember"} & offered
    assert "There is no tool called" in seen[-1][1]


def test_a_worker_for_execution_works_in_the_same_files_one_at_a_time(office: Office) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def worker(request: Mapping[str, Any]) -> Reply:
        nonlocal running, most
        if not last_result(request):
            with lock:
                running += 1
                most = max(most, running)
            return calls(call("bash", command="echo line >> shared.txt; wc -l < shared.txt"))
        with lock:
            running -= 1
        return calls(call("finish_task", outcome="done", summary=f"Wrote: {last_result(request)}"))

    def parent(request: Mapping[str, Any]) -> Reply:
        result = last_result(request)
        if not result:
            return calls(call("bash", command="echo first > shared.txt"))
        if "State: done" in result:
            return calls(call("bash", command="cat shared.txt"))
        if "first" in result:
            return say(f"Now: {result}")
        return calls(call("delegate", tasks=[task("execution", "one"), task("execution", "two")]))

    office.worker, office.parent = worker, parent
    conversation = office.say("Write two lines.")
    (answer,) = office.until(lambda: office.told(conversation), 60)
    assert answer.count("line") == 2
    assert most == 1


def test_delegation_inside_a_delegated_task_is_refused_with_the_reason(office: Office) -> None:
    heard: list[str] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        result = last_result(request)
        if not result:
            return calls(call("delegate", tasks=[task("research", "deeper")]))
        heard.append(result)
        return calls(call("finish_task", outcome="failed", summary="I may not."))

    office.worker = worker
    office.parent = office.delegate(task("research", "outer"))
    conversation = office.say("Delegate deeply.")
    (answer,) = office.until(lambda: office.told(conversation))
    assert "cannot be delegated further" in heard[0]
    assert "State: failed" in answer
    assert len(office.tasks(conversation)) == 1


def test_a_worker_that_talks_nonsense_ends_in_a_bounded_way_and_is_told_as_such(office: Office) -> None:
    office.worker = lambda request: calls(call(f"tool_{next(_numbers)}", x=1))
    office.parent = office.delegate(task("research", "nonsense"))
    conversation = office.say("Try it.")
    (answer,) = office.until(lambda: office.told(conversation), 60)
    assert "State: failed" in answer
    (row,) = office.tasks(conversation)
    assert (row.state, bool(row.reason)) == ("failed", True)
    office.worker = lambda request: say("The moon is made of green cheese.")
    office.parent = office.delegate(task("research", "words alone"))
    office.say("Again.", conversation)
    (answer,) = office.until(lambda: office.told(conversation)[1:])
    assert "green cheese" in answer


def test_stop_ends_the_run_and_its_workers(office: Office) -> None:
    begun: list[int] = []

    def worker(request: Mapping[str, Any]) -> Reply:
        begun.append(1)
        return say("late", delay=20)

    office.worker = worker
    office.parent = office.delegate(task("research", "slow"), task("execution", "slower"))
    conversation = office.say("Take your time.")
    office.until(lambda: len(begun) == 2)
    office.say("/stop", conversation)
    live = jobs.c.state.in_(("ready", "running", "waiting", "blocked", "scheduled"))
    of_it = (jobs.c.conversation_id == conversation) & jobs.c.kind.in_(("answer", "task"))
    office.until(lambda: not office.rows(select(jobs.c.id).where(of_it, live)), 6)
    assert [row.state for row in office.tasks(conversation)] == ["dropped"] * 2
    assert office.told(conversation) == ["Stopped, as asked."]


def test_stop_in_the_middle_of_a_workers_command_ends_the_command(office: Office) -> None:
    office.worker = lambda request: calls(call("bash", command="sleep 4213"))
    office.parent = office.delegate(task("execution", "wait long"))
    conversation = office.say("Wait.")
    office.until(lambda: processes("sleep 4213"))
    office.say("/stop", conversation)
    live = jobs.c.state.in_(("ready", "running", "waiting", "blocked", "scheduled"))
    of_it = (jobs.c.conversation_id == conversation) & jobs.c.kind.in_(("answer", "task"))
    office.until(lambda: not office.rows(select(jobs.c.id).where(of_it, live)))
    office.until(lambda: not processes("sleep 4213"))
    assert [row.state for row in office.tasks(conversation)] == ["dropped"]
    assert office.told(conversation) == ["Stopped, as asked."]


def processes(command: str) -> list[str]:
    """The processes of this machine that run exactly this."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if each.read_bytes().replace(b"\0", b" ").strip() == command.encode():
                found.append(each.parent.name)
    return found


def test_research_has_the_model_for_workers_and_execution_the_agents_own(office: Office) -> None:
    models: dict[str, str] = {}

    def worker(request: Mapping[str, Any]) -> Reply:
        models["research" if "bash" not in tools_of(request) else "execution"] = request["model"]
        return calls(call("finish_task", outcome="done", summary="ok"))

    office.worker = worker
    parent = office.delegate(task("research", "look"), task("execution", "do"))

    def noted(request: Mapping[str, Any]) -> Reply:
        models["parent"] = request["model"]
        return parent(request)

    office.parent = noted
    conversation = office.say("Who are you?")
    office.until(lambda: office.told(conversation), 60)
    assert models["research"] == WORKER_MODEL
    assert models["execution"] == models["parent"] != WORKER_MODEL


def test_spending_of_workers_is_charged_to_the_agent_and_told_to_the_run(office: Office) -> None:
    office.worker = lambda request: calls(call("finish_task", outcome="done", summary="ok"))
    office.parent = office.delegate(task("research", "cheap"))
    conversation = office.say("Spend something.")
    office.until(lambda: office.told(conversation))
    (row,) = office.tasks(conversation)
    paid = office.rows(select(spends).where(spends.c.job_id == row.job_id))
    assert {each.conversation_id for each in paid} == {conversation}
    assert {each.agent_id for each in paid} == {row.agent_id}
    assert row.cost > 0
