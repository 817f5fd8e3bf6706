"""Runs that go in circles are noticed; runs that work are left alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.conftest import Make
from agent.replay import Replay, recorded_turns
from gofer.agent.loop_detection import call_sig, detect_loop, result_sig
from gofer.agent.outcome import Answered, Stopped
from gofer.agent.state import State, Step
from gofer.runs.agent_files import AgentSpec
from gofer.tool import ToolResult
from gofer_standins.anthropic import Reply, call, calls, say


def run_of(*results: tuple[str, str], **step: Any) -> State:
    return State(steps=[Step(pairs=[pair], **step) for pair in results])


def verdicts(*results: tuple[str, str], **step: Any) -> list[str]:
    """What is found after each step, as code or code!."""
    found = []
    for count in range(1, len(results) + 1):
        finding = detect_loop(run_of(*results[:count], **step))
        found.append("" if finding is None else finding.code + ("!" if finding.stop else ""))
    return found


def test_the_same_call_with_the_same_result_is_nudged_at_three_and_stopped_at_five() -> None:
    found = verdicts(*[("ls", "a")] * 5)
    assert found[:2] == ["", ""]
    assert found[2] == "loop.repeat"
    assert found[4] == "loop.repeat!"


def test_polling_is_nudged_at_eight_and_stopped_at_twelve() -> None:
    found = verdicts(*[("status", str(i)) for i in range(12)])
    assert found[6] == ""
    assert found[7] == "loop.poll"
    assert found[11] == "loop.poll!"


def test_a_tool_made_for_polling_may_poll() -> None:
    assert set(verdicts(*[("job", "running")] * 40, polling=True)) == {""}


@pytest.mark.parametrize("period", [2, 3])
def test_three_full_cycles_are_a_stop(period: int) -> None:
    steps = [(f"call{i % period}", "same") for i in range(period * 3)]
    found = verdicts(*steps)
    assert "loop.cycle!" not in found[:-1]
    assert found[-1] == "loop.cycle!"


def test_errors_in_a_row_and_malformed_calls() -> None:
    steps = [(f"call{i}", f"error{i}") for i in range(8)]
    assert verdicts(*steps, errors=1)[4] == "loop.errors"
    assert verdicts(*steps, errors=1)[7] == "loop.errors!"
    assert verdicts(*steps[:3], malformed=1)[2] == "loop.malformed!"


def test_nothing_new_for_six_steps_is_a_stop_unless_something_moved() -> None:
    fresh = [(f"call{i}", "x") for i in range(8)]
    order = [3, 0, 5, 2, 7, 4]
    found = verdicts(*fresh, *[fresh[i] for i in order])
    assert found[11] == "loop.stale"
    assert found[13] == "loop.stale!"
    assert "loop.stale!" not in verdicts(*fresh, *[fresh[i] for i in order], progress=True)


def test_results_that_differ_in_noise_only_are_the_same() -> None:
    one = "\x1b[31mfailed\x1b[0m at 2026-11-16T09:30:11Z in 3.21s, pid 4711, 0x7f3a2b1c, /tmp/abc123/x"
    two = "failed at 2026-11-16T09:31:59Z in 4.09s, pid 4799, 0x7f992b1c, /tmp/zzz999/y"
    assert result_sig(ToolResult(one)) == result_sig(ToolResult(two))
    assert result_sig(ToolResult("3 passed")) != result_sig(ToolResult("4 passed"))
    assert result_sig(ToolResult("", exit_code=0)) != result_sig(ToolResult("", exit_code=1))
    assert call_sig("a", {"x": 1, "y": 2}) == call_sig("a", {"y": 2, "x": 1})


def normal_run(seed: int) -> Iterator[tuple[str, str]]:
    """Looking around, then edit and test until it passes: what most recorded runs look like."""
    rng = random.Random(seed)
    for number in range(rng.randint(3, 30)):
        yield f"read file{number}", f"content {number}"
        if rng.random() < 0.3:
            yield f"grep {number}", "Nothing found."
    for number in range(rng.randint(5, 50)):
        yield f"edit {number}", f"made edit {number}"
        yield "pytest", f"{rng.randint(0, 9)} failed, run {number}"
        if rng.random() < 0.4:
            yield f"read file{rng.randint(0, 16)} part {number}", f"part {number}"


def test_normal_runs_are_never_stopped() -> None:
    for seed in range(60):
        steps = list(normal_run(seed))
        assert not [code for code in verdicts_fast(steps) if code.endswith("!")], f"seed {seed}"


def verdicts_fast(steps: list[tuple[str, str]]) -> set[str]:
    state = State()
    found = set()
    for pair in steps:
        state.steps.append(Step(pairs=[pair]))
        if (finding := detect_loop(state)) is not None:
            found.add(finding.code + ("!" if finding.stop else ""))
    return found


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["write", "edit", "sed"]), min_size=1, max_size=2),
        st.lists(st.sampled_from(["pytest", "ruff", "cat log"]), min_size=1, max_size=3, unique=True),
        st.sampled_from(["1 failed", "2 failed"]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(rounds=ROUNDS, same_edit=st.booleans())
def test_nothing_is_repeated_while_each_time_the_workspace_changed_before(
    rounds: Any, same_edit: bool
) -> None:
    """Whatever is looked at between changes, and however alike the changes and the results look."""
    state = State()
    for number, (changes, checks, result) in enumerate(rounds):
        steps = [
            Step(pairs=[(f"{name} {0 if same_edit else number}", "ok")], progress=True) for name in changes
        ]
        for step in [*steps, *(Step(pairs=[(check, result)]) for check in checks)]:
            state.steps.append(step)
            found = detect_loop(state)
            assert found is None or not found.stop, (found, number)


@settings(max_examples=200, deadline=None)
@given(
    loop=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    before=st.integers(0, 10),
    changing=st.booleans(),
)
def test_a_real_loop_ends_within_twelve_steps(loop: list[str], before: int, changing: bool) -> None:
    """Whatever work was done before; also one call over and over that adds to a file of its own each time."""
    state = State(steps=[Step(pairs=[(f"edit {n}", "ok")], progress=True) for n in range(before)])
    loop, changing = (loop[:1], True) if changing else (loop, False)
    for number in range(12):
        state.steps.append(Step(pairs=[(loop[number % len(loop)], "same")], progress=changing))
        found = detect_loop(state)
        if found is not None and found.stop:
            return
    raise AssertionError(f"{loop} goes on")


@pytest.mark.parametrize("change", ["edit", "write", "sed"])
async def test_the_same_failing_test_after_another_edit_each_time_is_work(direct: Make, change: str) -> None:
    """Its output does not change either; only the sixth edit makes it pass."""

    def script(request: Any) -> Reply:
        turn = len(request["messages"]) // 2
        if "passed" in str(request["messages"][-1]):
            return say("It passes.")
        if turn == 0:
            return calls(call("write", path="code", content="try 0\n"))
        if turn % 2:
            return calls(call("bash", command="grep -q 'try 7' code && echo passed || echo 1 failed"))
        number = turn // 2
        return calls(
            {
                "edit": call(
                    "edit", path="code", edits=[{"old": f"try {number - 1}", "new": f"try {number}"}]
                ),
                "write": call("write", path="code", content=f"try {number}\n"),
                "sed": call("bash", command=f"sed -i 's/try .*/try {number}/' code"),
            }[change]
        )

    world, _ = direct(script)
    assert await world.run() == Answered("It passes.", included_to=1)
    assert sum("grep" in command for command in world.shell.commands) == 8


async def test_a_test_that_leaves_caches_behind_is_no_change(direct: Make) -> None:
    again = "mkdir -p .pytest_cache; date +%N >.pytest_cache/last; echo 1 failed"
    world, _ = direct(lambda request: _wrapped_up(request) or calls(call("bash", command=again)))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "loop.repeat"
    assert len(world.shell.commands) == 5


def _wrapped_up(request: Any) -> Reply | None:
    return say("The test fails, whatever I look at.") if request["tool_choice"]["type"] == "none" else None


async def test_whoever_asked_hears_how_far_a_looping_run_got(direct: Make) -> None:
    world, service = direct(lambda request: _wrapped_up(request) or calls(call("bash", command="false")))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.text == f"The test fails, whatever I look at.\n\n{outcome.sentence}"
    assert "call no tool" in str(service.received[-1]["messages"][-1])
    poor, _ = direct(lambda request: calls(call("bash", command="false")), spec=AgentSpec(name="gofer"))
    poor.ledger.others = 10_000_000 - 250_000
    assert isinstance(await poor.run(), Stopped), "without the money for it, it simply stops"


async def test_a_looping_model_is_nudged_once_and_stopped_with_a_code(direct: Make) -> None:
    world, service = direct(lambda request: calls(call("bash", command="echo same")))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "loop.repeat"
    assert "over and over" in outcome.text
    assert len(world.shell.commands) == 5
    assert str(service.received[-1]["messages"]).count("Do something different") == 1
    assert world.journal.kinds[-1] == "run.stopped"


async def test_a_model_that_only_talks_is_stopped(direct: Make) -> None:
    world, _ = direct(lambda request: say("I am about to", stop_reason="max_tokens"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "loop.monologue"


async def test_replaying_a_recorded_run_gives_the_same_answer_and_no_stop(direct: Make) -> None:
    def script(request: Any) -> Reply:
        turn = len(request["messages"]) // 2
        if turn == 12:
            return say("Fixed.")
        if turn % 2:
            return calls(call("bash", command="cat code; test $(wc -c <code) -gt 5"))
        return calls(call("write", path="code", content="x" * (turn + 1)))

    world, _ = direct(script)
    assert await world.run() == Answered("Fixed.", included_to=1)
    (world.shell.directory / "code").unlink()
    again, _ = direct(say("unused"))
    again.model = Replay(recorded_turns(world.journal.events))
    assert await again.run() == Answered("Fixed.", included_to=1)
    assert [data["result_sig"] for data in again.journal.all("tool.finished")] == [
        data["result_sig"] for data in world.journal.all("tool.finished")
    ]
