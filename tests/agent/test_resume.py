"""Killed and started again: what becomes of a call, an answer, a worker that lost its job, and the money."""

from __future__ import annotations

import json

import pytest

from agent.conftest import Make
from agent.ports import Killed, ListJournal
from gofer.agent.outcome import Answered
from gofer.agent.state import fold
from gofer.agent.transcript import OUTCOME_UNKNOWN
from gofer.errors import Fenced
from gofer.tool import CommandResult
from gofer_standins.anthropic import call, calls, say


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


async def test_a_call_whose_tool_is_gone_after_the_kill_is_unknown_and_not_refused(direct: Make) -> None:
    world, service = direct(calls(call("bash", command="deploy")), say("I looked."))
    world.journal = ListJournal(die_after=4)
    with pytest.raises(Killed):
        await world.run()
    for event in world.journal.events:  # as a tool of an MCP server that cannot be reached any more
        event.data.update(json.loads(json.dumps(event.data).replace('"bash"', '"mcp__ops__deploy"')))
    world.journal = ListJournal(world.journal.events)
    assert await world.run() == Answered("I looked.", included_to=1)
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
