"""The journal, cut at every event of any run: what is folded from it is a valid request, and the run goes on.

Runs are made of everything a run can be made of: calls side by side, calls that act, questions, thinking, answers that
are cut or empty, malformed calls, messages that come in between, clearing and compaction.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.conftest import Make
from agent.ports import DictLedger, Killed, ListInbox, ListJournal, World, ada, bob
from gofer.agent.context.compressor import ContextSettings
from gofer.agent.conversation import QuestionAnswer
from gofer.agent.limits import Go, LimitSettings
from gofer.agent.models.anthropic import parameters
from gofer.agent.outcome import Answered, Asked
from gofer.agent.state import fold
from gofer.agent.tools.builtin import builtin_tools
from gofer.runs.agent_files import AgentSpec
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say, think

SMALL = AgentSpec(
    name="gofer",
    context=ContextSettings(clear_at=1_500, clear_batch=300, keep_rounds=1, compact_at=3_000, keep=400),
    limits=LimitSettings(job_dollars=50, day_dollars=50),
)
"""Clears and compacts after a few steps."""


@pytest.fixture(autouse=True)
def _clear_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a dozen steps clears results, too."""
    monkeypatch.setattr("gofer.agent.context.compressor.CLEAR_ROUNDS", 1)


STEPS: dict[str, Any] = {
    "look": lambda n: calls(*(call("look", step=n, number=i) for i in range(3))),
    "act": lambda n: calls(call("act", step=n)),
    "both": lambda n: calls(call("look", step=n), call("act", step=n), call("look", step=n, number=1)),
    "think": lambda n: calls(think(f"Hm, step-{n}."), call("act", step=n)),
    "tell": lambda n: say(f"Now step-{n}. ", call("look", step=n)),
    "ask": lambda n: say(f"On step-{n}.", call("ask_user", question=f"May I do step-{n}?")),
    "malformed": lambda n: calls(call("look", step=f"step-{n}"), call("act", step=n)),
    "unknown": lambda n: calls(call("no_such_tool", about=f"step-{n}"), call("look", step=n)),
    "cut": lambda n: say(f"Half of step-{n}, ", stop_reason="max_tokens"),
    "pause": lambda n: say(f"Wait: step-{n}. ", stop_reason="pause_turn"),
    "hear": lambda n: calls(call("look", step=n, hear=True)),
}
EVERYTHING = (
    "look",
    "hear",
    "cut",
    "both",
    "ask",
    "think",
    "hear",
    "malformed",
    "tell",
    "unknown",
    "act",
    "pause",
    "look",
)


@dataclass
class Play:
    """A model that works through a plan, knowing only what it is shown, and the world its calls act on."""

    plan: Sequence[str]
    world: World
    service: Anthropic
    acted: list[int] = field(default_factory=list)

    def reply(self, request: Mapping[str, Any]) -> Reply:
        shown = json.dumps(request["messages"])
        done = max(
            (int(n) for n in re.findall(r'step-(\d+)|"step": (\d+)', shown) for n in n if n), default=0
        )
        if not request.get("tools"):
            heads = "Goal: g\nConstraints: c\nDecisions: d\nNext steps: n\nFiles: f\nProgress: "
            return say(f"{heads}up to step-{done}")
        return STEPS[self.plan[done]](done + 1) if done < len(self.plan) else say(f"Done, step-{done}.")

    async def until_done(self) -> Any:
        while isinstance(outcome := await self.world.run(), Asked):
            pass
        return outcome

    def begin_again(self, **death: Any) -> None:
        self.acted.clear()
        self.world.inbox = ListInbox(ada("Never hurry. Do every step."))
        self.world.journal, self.world.ledger = ListJournal(**death), DictLedger()


def play(direct: Make, plan: Sequence[str]) -> Play:
    made: list[Play] = []

    class Step(Arguments):
        step: int
        number: int = 0
        hear: bool = False

    async def look(arguments: Step, context: ToolContext) -> ToolResult:
        if arguments.hear:
            _hear(made[0].world.inbox, arguments.step)
        return ToolResult(f"step-{arguments.step} " + "seen " * 300)

    async def act(arguments: Step, context: ToolContext) -> ToolResult:
        made[0].acted.append(arguments.step)
        return ToolResult(f"step-{arguments.step} is done.", progress=True)

    tools = [
        *(tool for tool in builtin_tools() if tool.name == "ask_user"),
        Tool("look", "Look.", Step, look, Tier.READ, parallel=True),
        Tool("act", "Act.", Step, act, Tier.EXEC),
    ]
    world, service = direct(lambda request: made[0].reply(request), tools=tools, spec=SMALL)
    world.questions.given["*"] = QuestionAnswer("Yes.", "Ada", "owner")
    made.append(Play(plan, world, service))
    made[0].begin_again()
    return made[0]


def _hear(inbox: ListInbox, step: int) -> None:
    """Somebody joins in while that step is done: a stranger first, then the owner."""
    for seq, said in ((100 * step, bob), (100 * step + 1, ada)):
        if all(one.seq != seq for one in inbox.messages):
            inbox.messages.append(said("By the way, it rains.", seq))


async def check_every_cut(played: Play) -> None:
    """Whatever the journal ends with, what is folded from it can be sent."""
    whole = played.world.journal.events
    for cut in range(1, len(whole) + 1):
        played.world.journal = ListJournal(whole[:cut])
        loop = await played.world.loop()
        request = await loop._context.request(fold(whole[:cut]), Go(1000, 0))
        body = json.loads(json.dumps(parameters(request, "claude-sonnet-5-5")))
        assert played.service.check(body) == [], f"cut after event {cut}: {whole[cut - 1].kind}"
    played.world.journal = ListJournal(whole)


def check_effects(played: Play) -> None:
    """Each call has one result; each act was done once, or not more than once where the outcome was unknown."""
    finished = played.world.journal.all("tool.finished")
    assert len(finished) == len({data["call_id"] for data in finished})
    assert len(played.acted) == len(set(played.acted)), "nothing is done twice"
    acts = [data for data in finished if data["name"] == "act"]
    unknown = sum(data["status"] == "unknown" for data in acts)
    assert len(acts) - unknown <= len(played.acted) <= len(acts)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=9), data=st.data())
async def test_any_run_can_be_cut_and_killed_anywhere(
    direct: Make, plan: list[str], data: st.DataObject
) -> None:
    played = play(direct, _sensible(plan))
    whole = await played.until_done()
    assert isinstance(whole, Answered)
    check_effects(played)
    await check_every_cut(played)
    cut = data.draw(st.integers(1, len(played.world.journal.events)))
    await check_killed(played, cut, whole, late=data.draw(st.booleans()))


def _sensible(plan: Sequence[str]) -> list[str]:
    """Without what is rightly stopped: answers in a row with neither a call nor an end, call after call malformed."""
    kept: list[str] = []
    for step in plan:
        talks = step in ("cut", "pause") and kept and kept[-1] in ("cut", "pause")
        wrong = step in ("malformed", "unknown") and step in kept
        if not talks and not wrong:
            kept.append(step)
    return kept


async def check_killed(played: Play, cut: int, whole: Answered, *, late: bool) -> None:
    """Killed after this many events, another worker comes to the same end."""
    played.begin_again(die_after=cut, late=late)
    with contextlib.suppress(Killed):
        await played.until_done()
    assert len(played.world.journal.events) == cut
    played.world.journal = ListJournal(played.world.journal.events)
    outcome = await played.until_done()
    assert isinstance(outcome, Answered)
    assert outcome.included_to == whole.included_to
    assert outcome.text.endswith(whole.text[-10:])
    assert played.service.refused == [], f"killed after event {cut}"
    check_effects(played)


@pytest.mark.slow
async def test_a_run_of_everything_killed_at_every_event_is_finished_by_another_worker(direct: Make) -> None:
    played = play(direct, EVERYTHING)
    whole = await played.until_done()
    assert isinstance(whole, Answered)
    kinds = played.world.journal.kinds
    assert {"context.cleared", "context.checkpoint", "run.asked"} <= set(kinds)
    await check_every_cut(played)
    for cut, kind in enumerate(kinds, 1):
        await check_killed(played, cut, whole, late=False)
        if kind.endswith(".started"):
            await check_killed(played, cut, whole, late=True)
