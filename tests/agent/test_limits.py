"""Spending is bounded before each call, every run ends, and every stop has a code and a sentence."""

from __future__ import annotations

import base64
import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.conftest import Make
from agent.ports import ListInbox, ListJournal, ada
from gofer.agent.context import dense_extra, text_size
from gofer.agent.limits import LimitSettings
from gofer.agent.model import Usage
from gofer.agent.outcome import Answered, Stopped
from gofer.agent.prices import MICROS, load_prices
from gofer.agent.state import fold
from gofer.agent.tools.builtin import builtin_tools
from gofer.errors import ConfigError
from gofer.runs.agent_files import AgentSpec
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_standins.anthropic import Reply, call, calls, say


def endless(request: Any) -> Reply:
    """Always has another thing to do, unless it may not."""
    if request["tool_choice"]["type"] == "none":
        return say("This is how far I got.")
    turn = len(request["messages"])
    return calls(call("bash", command=f"echo {turn}"), call("todo", items=[{"text": "x" * 400 + str(turn)}]))


def with_limits(**limits: Any) -> AgentSpec:
    return AgentSpec(name="gofer", limits=LimitSettings(**limits))


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"steps": 6}, "limit.steps"),
        ({"job_dollars": 0.15}, "budget.job"),
        ({"tokens": 20_000}, "limit.tokens"),
        ({"day_dollars": 0.2}, "budget.day"),
        ({"conversation_dollars": 0.2}, "budget.conversation"),
    ],
)
async def test_a_run_that_would_never_end_wraps_up_and_stops(
    direct: Make, limits: dict[str, Any], code: str
) -> None:
    world, service = direct(endless, spec=with_limits(**limits))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == code
    assert outcome.text == f"This is how far I got.\n\n{outcome.sentence}"
    assert service.refused == []
    spent = fold(world.journal.events).spent
    caps = [limits.get(name, 99) for name in ("job_dollars", "day_dollars", "conversation_dollars")]
    assert spent <= min(caps) * MICROS
    assert spent == world.ledger.total
    if code.startswith("budget"):
        told = re.search(r"\$([\d.]+) is spent or set aside, .* up to \$([\d.]+)\. ", outcome.sentence)
        assert told is not None, outcome.sentence
        paid, needed = map(float, told.groups())
        assert paid <= min(caps) < paid + needed + 0.01
        assert next(iter(limits)) in outcome.sentence, "what raises it"


def loud(request: Any) -> Reply:
    """Has tools return as much as they may, so that the next request is far larger than the last."""
    if request.get("tool_choice", {}).get("type") != "auto":
        return say("This is how far I got.")
    turn = len(request["messages"])
    return calls(*(call("shout", text=f"{turn}-{n}") for n in range(12)))


class Shout(Arguments):
    text: str


async def shout(arguments: Shout, context: ToolContext) -> ToolResult:
    return ToolResult((f"{arguments.text}\n" * 24_000)[:24_000])


SHOUT = Tool("shout", "Much text.", Shout, shout, Tier.READ)


@pytest.mark.parametrize(
    ("name", "code", "cap"),
    [
        ("job_dollars", "budget.job", 0.2),
        ("day_dollars", "budget.day", 0.26),
        ("conversation_dollars", "budget.conversation", 0.2),
    ],
)
async def test_there_is_money_for_a_last_answer_whatever_tools_return(
    direct: Make, name: str, code: str, cap: float
) -> None:
    spec = with_limits(**{"job_dollars": 0, "day_dollars": 0, name: cap})
    world, service = direct(loud, spec=spec, tools=[*builtin_tools(), SHOUT])
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == code
    assert outcome.text == f"This is how far I got.\n\n{outcome.sentence}"
    assert len(service.received) > 1
    assert service.refused == []
    assert fold(world.journal.events).spent == world.ledger.total <= cap * MICROS


def dense_tokens(text: str) -> int:
    """As a real model counts: four characters a token in words, hardly more than one in base64, hex and numbers."""
    words = sum(len(word) for word in re.findall(r"[a-z ]{3,}", text))
    return int(words / 4 + (len(text) - words) / 1.1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(500, 20_000), st.integers(1, 10)), min_size=1, max_size=8),
    kind=st.sampled_from(["base64", "hex", "numbers"]),
    cap=st.sampled_from([0.2, 0.5, 1.0]),
    scope=st.sampled_from(["job_dollars", "day_dollars", "conversation_dollars"]),
)
async def test_a_cap_holds_for_text_that_is_dense_with_tokens(
    direct: Make, sizes: list[tuple[int, int]], kind: str, cap: float, scope: str
) -> None:
    turns = iter(sizes)

    def script(request: Any) -> Reply:
        size, count = next(turns, (0, 0)) if request.get("tool_choice", {}).get("type") == "auto" else (0, 0)
        return calls(*[call("produce", kind=kind, size=size)] * count) if size else say("So far.")

    spec = with_limits(**{"job_dollars": 0, "day_dollars": 0, scope: cap, "output_tokens": 2000})
    world, service = direct(script, spec=spec, tools=[*builtin_tools(), PRODUCE])
    service.tokens_of = dense_tokens
    await world.run()
    one_output = 2000 * 10
    assert fold(world.journal.events).spent <= cap * MICROS + one_output
    assert service.refused == []


class Dense(Arguments):
    kind: str
    size: int


async def produce(arguments: Dense, context: ToolContext) -> ToolResult:
    data = random.Random(arguments.size).randbytes(arguments.size)
    texts = {
        "base64": base64.b64encode(data).decode(),
        "hex": data.hex(),
        "numbers": " ".join(map(str, data)),
    }
    text = texts[arguments.kind][: arguments.size]
    return ToolResult("\n".join(text[start : start + 76] for start in range(0, len(text), 76)))


PRODUCE = Tool("produce", "Dense text.", Dense, produce, Tier.READ)


def test_the_size_of_a_text_is_by_its_kind() -> None:
    words = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 40
    code = "def area(width: int, height: int) -> int:\n    return width * height\n\n" * 40
    dense = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    assert len(words) / 4 <= text_size(words) <= len(words) / 3
    assert len(code) / 4 <= text_size(code) <= len(code) / 3
    assert dense_extra(words) == dense_extra(code) == 0
    assert text_size(dense) + dense_extra(dense) >= len(dense) * 0.95
    assert text_size("漢字" * 500) + dense_extra("漢字" * 500) >= 1000
    assert dense_extra(words + dense) > len(dense) / 2


async def test_the_user_is_warned_and_the_model_is_told_before_the_end(direct: Make) -> None:
    world, service = direct(endless, spec=with_limits(steps=10))
    await world.run()
    assert len(world.journal.all("run.warned")) == 1
    assert "80%" in world.journal.last("run.warned")["sentence"]
    assert str(service.received[-2]["messages"]).count("About a tenth") == 1
    script = [calls(call("todo", items=[{"text": str(n)}])) for n in range(9)]
    world, _ = direct([*script, say("Done.")], spec=with_limits(steps=11))
    assert await world.run() == Answered("Done.", 1, warning="This job has used more than 80% of its steps.")


async def test_a_day_that_is_used_up_stops_before_the_first_call(direct: Make) -> None:
    world, service = direct(say("Never."))
    world.ledger.others = 10 * MICROS
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "budget.day"
    assert service.received == []


async def test_an_unknown_price_with_a_cap_refuses_to_start(direct: Make) -> None:
    world, service = direct(say("Hello."), model="claude-of-the-future")
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "price.unknown"
    assert "prices.toml" in outcome.sentence
    assert service.received == []
    world, _ = direct(
        say("Hello."), model="claude-of-the-future", spec=with_limits(job_dollars=0, day_dollars=0)
    )
    assert isinstance(await world.run(), Answered)


async def test_what_a_schedule_says_has_a_smaller_budget(direct: Make) -> None:
    inbox = ListInbox(ada("Tidy up.", background=True))
    world, service = direct(
        endless, inbox=inbox, spec=with_limits(background_dollars=0.08, output_tokens=1000)
    )
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "budget.job"
    assert "$0.08 for one background job" in outcome.text
    assert fold(world.journal.events).spent <= 0.08 * MICROS
    assert "Tidy up." in str(service.received[0]["messages"])
    assert outcome.included_to == 1


async def test_a_smaller_budget_is_never_the_larger_one() -> None:
    assert LimitSettings(job_dollars=0.1).job_cap(background=True) == 0.1 * MICROS
    assert LimitSettings(job_dollars=0).job_cap(background=True) == 0.25 * MICROS
    assert LimitSettings(job_dollars=0).job_cap(background=False) == 0


async def test_somebody_who_joins_in_is_waited_for_with_the_whole_budget(direct: Make) -> None:
    """And a schedule that speaks while somebody is waited for has a run of its own."""
    world, _ = direct(endless, inbox=ListInbox(ada("Tidy up.", background=True)))
    world.spec = with_limits(background_dollars=0.08, job_dollars=0.2, output_tokens=1000)
    original = world.shell.run

    async def run(command: str, **more: Any) -> Any:
        joining = len(world.inbox.messages) == 1
        world.inbox.messages.append(ada("I am here.", 2) if joining else ada("Water.", 3, background=True))
        return await original(command, **more)

    world.shell.run = run
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert "$0.20 for one job" in outcome.text
    assert outcome.included_to == 2
    assert [event.data["awaited"] for event in world.journal.events if event.kind == "turn.started"][:2] == [
        False,
        True,
    ]
    assert fold(world.journal.events).spent > 0.08 * MICROS


async def test_a_tool_that_hangs_is_given_up_by_the_time_limit(direct: Make) -> None:
    world, service = direct(calls(call("bash", command="sleep 60", timeout=1)), say("It hung."))
    assert await world.run() == Answered("It hung.", included_to=1)
    result = service.received[1]["messages"][-1]["content"][0]
    assert "timed out" in result["content"][0]["text"]


async def test_the_working_time_of_the_job_bounds_a_command(direct: Make) -> None:
    def script(request: Any) -> Reply:
        return (
            endless(request)
            if request["tool_choice"]["type"] == "none"
            else calls(call("bash", command="sleep 60"))
        )

    world, _ = direct(script, spec=with_limits(active_minutes=1 / 60))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "limit.time"


def test_prices_follow_the_kind_of_token() -> None:
    price = load_prices().of("anthropic/claude-sonnet-5-5")
    assert price is not None
    million = 1_000_000
    assert price.cost(Usage(input=million)) == 2 * MICROS
    assert price.cost(Usage(cache_read=million)) == MICROS // 5
    assert price.cost(Usage(cache_write=million)) == 2_500_000
    assert price.cost(Usage(cache_write_1h=million)) == 4 * MICROS
    assert price.cost(Usage(output=million)) == 10 * MICROS
    assert price.cost(Usage(input=1)) == 2


def test_a_user_extends_the_prices_with_a_file(tmp_path: Any) -> None:
    mine = tmp_path / "prices.toml"
    mine.write_text(
        '["local/*"]\ninput = 0\noutput = 0\n["anthropic/claude-sonnet-5-5"]\ninput = 9\noutput = 9\n'
    )
    prices = load_prices(mine)
    assert prices.of("local/llama") is not None
    assert prices.of("anthropic/claude-sonnet-5-5").input == 9  # type: ignore[union-attr]
    mine.write_text('["local/x"]\ninput = -1\noutput = 0\n')
    with pytest.raises(ConfigError, match=r"\[local/x\] input"):
        load_prices(mine)


async def test_a_second_model_steps_in_and_both_prices_count(rehearse: Make) -> None:
    from gofer.agent.models.catalogue import Fallback
    from gofer_standins.anthropic import fault

    first, _ = await rehearse([fault("overloaded")] * 9)
    second, working = await rehearse(say("I am the other one."), model="claude-haiku-4-5")
    first.model = Fallback(first.model, second.model)
    first.inbox.messages = [ada("Anybody there?")]
    assert await first.run() == Answered("I am the other one.", included_to=1)
    assert first.journal.last("turn.finished")["model"] == "anthropic/claude-haiku-4-5"
    assert working.refused == []


async def test_a_last_answer_that_was_cut_off_by_a_crash_keeps_its_reason(direct: Make) -> None:
    world, _ = direct(endless, spec=with_limits(steps=3))
    await world.run()
    kinds = world.journal.kinds
    last_call = len(kinds) - kinds[::-1].index("turn.started")
    again, _ = direct(endless, spec=with_limits(steps=3))
    again.journal = ListJournal(world.journal.events[:last_call])
    outcome = await again.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "limit.steps"
    assert outcome.text.startswith("This is how far I got.")
