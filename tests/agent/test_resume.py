"""Killed at every event of a run and started again: every request is valid, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.conftest import Make
from agent.ports import DictLedger, Killed, ListJournal, LocalShell, World
from gofer.agent.conversation import Answer
from gofer.agent.models.anthropic import marked, sendable
from gofer.agent.outcome import Answered, Asked
from gofer.agent.state import fold
from gofer.agent.transcript import OUTCOME_UNKNOWN, merge, transcript
from gofer.errors import Fenced
from gofer.rehearsal.anthropic import Reply, call, calls, say, think
from gofer.rehearsal.anthropic_rules import problems
from gofer.tool import CommandResult


def script(request: Mapping[str, Any]) -> Reply:
    """By what it is shown alone, so that it can be asked again after any crash."""
    answered = sum(message["role"] == "assistant" for message in request["messages"])
    replies = [
        calls(
            think("First look."), call("ls"), call("read", path="a.txt"), call("bash", command="echo x >>log")
        ),
        calls(
            call("edit", path="a.txt", edits=[{"old": "one", "new": "two"}]),
            call("bash", command="cat a.txt"),
        ),
        say("Nearly there.", call("ask_user", question="Shall I?")),
        calls(call("todo", items=[{"text": "finish"}]), call("bash", command="echo y >>log")),
        say("All done."),
    ]
    reply: Reply = replies[answered]
    return reply


async def _world(direct: Make) -> tuple[World, Any]:
    world, service = direct(script)
    world.questions.given["*"] = Answer("Yes.", "Ada", "owner")
    await world.shell.write("a.txt", b"one\n")
    return world, service


async def _until_done(world: World) -> Any:
    while isinstance(outcome := await world.run(), Asked):
        pass
    return outcome


async def test_cut_at_every_event_the_folded_request_is_valid_and_the_run_goes_on(direct: Make) -> None:
    world, service = await _world(direct)
    assert await _until_done(world) == Answered("All done.", included_to=1)
    whole = world.journal.events
    assert len(whole) > 25
    for cut in range(1, len(whole)):
        messages = tuple(merge(transcript(fold(whole[:cut]))))
        if len(messages) == 1 and cut == 1:
            continue
        request = {
            "model": "m",
            "max_tokens": 10,
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
            "messages": marked(sendable(messages, "anthropic/claude-sonnet-5-5")),
        }
        assert problems(request, service._signatures) == [], f"cut after event {cut}: {whole[cut - 1].kind}"


async def test_killed_at_every_event_another_worker_finishes_without_repeating(
    direct: Make, tmp_path: Path
) -> None:
    world, service = await _world(direct)
    await _until_done(world)
    for cut in range(1, len(world.journal.events) + 1):
        (tmp_path / f"cut{cut}").mkdir()
        world.shell = LocalShell(tmp_path / f"cut{cut}")
        await world.shell.write("a.txt", b"one\n")
        world.journal, world.ledger = ListJournal(die_after=cut), DictLedger()
        with pytest.raises(Killed):
            await _until_done(world)
        world.journal = ListJournal(world.journal.events)
        assert await _until_done(world) == Answered("All done.", included_to=1)
        assert service.refused == [], f"killed after event {cut}"
        _check_effects(world, tmp_path / f"cut{cut}" / "log")


def _check_effects(world: World, log: Path) -> None:
    """Each command ran once, or not at all where its outcome was reported as unknown."""
    finished = world.journal.all("tool.finished")
    assert len(finished) == len({data["call_id"] for data in finished}) == 8
    unknown = sum(data["status"] == "unknown" for data in finished)
    lines = log.read_text().split() if log.exists() else []
    assert len(lines) == len(set(lines))
    assert len(lines) >= 2 - unknown


async def test_a_command_whose_worker_died_is_reported_as_unknown_and_not_repeated(direct: Make) -> None:
    world, service = direct(calls(call("bash", command="echo once >>log")), say("I looked."))
    world.journal = ListJournal(die_after=4)
    with pytest.raises(Killed):
        await world.run()
    assert world.journal.kinds[-1] == "tool.started"
    world.journal = ListJournal(world.journal.events)
    assert await world.run() == Answered("I looked.", included_to=1)
    assert world.shell.commands == []
    assert service.received[1]["messages"][-1]["content"][0]["content"][0]["text"] == OUTCOME_UNKNOWN


async def test_a_command_the_shell_still_knows_is_reattached_with_its_output(direct: Make) -> None:
    world, service = direct(calls(call("bash", command="echo once")), say("I looked."))
    world.journal = ListJournal(die_after=4)
    with pytest.raises(Killed):
        await world.run()
    call_id = world.journal.last("tool.started")["call_id"]
    world.shell._outcomes[call_id] = CommandResult(b"once\n", 0)
    world.journal = ListJournal(world.journal.events)
    assert await world.run() == Answered("I looked.", included_to=1)
    assert world.shell.commands == []
    assert service.received[1]["messages"][-1]["content"][0]["content"][0]["text"] == "once"


async def test_a_read_whose_worker_died_is_simply_run_again(direct: Make) -> None:
    world, service = direct(calls(call("read", path="a")), say("Read."))
    await world.shell.write("a", b"text")
    world.journal = ListJournal(die_after=4)
    with pytest.raises(Killed):
        await world.run()
    world.journal = ListJournal(world.journal.events)
    assert await world.run() == Answered("Read.", included_to=1)
    assert "text" in service.received[1]["messages"][-1]["content"][0]["content"][0]["text"]


async def test_an_answer_whose_end_was_not_recorded_is_not_paid_for_again(direct: Make) -> None:
    world, service = direct(say("Once."))
    world.journal = ListJournal(die_after=3)
    with pytest.raises(Killed):
        await world.run()
    world.journal = ListJournal(world.journal.events)
    assert await world.run() == Answered("Once.", included_to=1)
    assert await world.run() == Answered("Once.", included_to=1), "and an ended run stays ended"
    assert len(service.received) == 1


async def test_a_fenced_worker_stops_at_once_and_leaves_the_command_alone(direct: Make) -> None:
    world, _ = direct(calls(call("bash", command="true")), say("Never."))
    world.journal.fenced = True
    with pytest.raises(Fenced):
        await world.run()
    assert world.shell.commands == []


async def test_budgets_survive_a_restart(direct: Make) -> None:
    world, _ = direct(calls(call("ls")), say("Done."))
    world.journal = ListJournal(die_after=6)
    with pytest.raises(Killed):
        await world.run()
    before = fold(world.journal.events)
    assert before.spent > 0
    assert before.reserved > 0, "the call under way when it died stays charged at its worst"
    world.journal = ListJournal(world.journal.events)
    await world.run()
    after = fold(world.journal.events)
    assert after.spent > before.spent + before.reserved
