"""What every adapter does alike, over a real terminal and a real process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gofer.runtime_host.acp import AcpAdapter
from gofer.runtime_host.configuration import AcpSettings, TmuxSettings
from gofer.runtime_host.interfaces import MAX_TEXT, Adapter
from gofer.runtime_host.state import RuntimeState, StateFolder
from gofer.runtime_host.tmux import TmuxAdapter
from support.patience import eventually
from support.terminals import AGENT, Terminals, needs_tmux, terminals

from .order_runs import carry_out

NUMBERS = itertools.count()
ACP_AGENT = Path(__file__).parents[2] / "support" / "acp_agent.py"


@dataclass
class Case:
    """An adapter, and a test's own look at what is behind it."""

    adapter: Adapter
    told: Callable[[], list[str]]
    """What the agent was told."""
    kill: Callable[[], None]


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


@pytest.fixture(params=[pytest.param("tmux", marks=needs_tmux), "acp"])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    made = _in_pane(request.getfixturevalue("desk")) if request.param == "tmux" else _by_protocol(tmp_path)
    await made.adapter.open()
    yield made
    await made.adapter.close()


def _in_pane(desk: Terminals) -> Case:
    name = f"agent-{next(NUMBERS)}"
    pane = desk.agent(name)
    spawn = [sys.executable, "-I", str(AGENT), str(desk.log(name))]
    given = {
        "agent": "coder",
        "kind": "tmux",
        "pane": pane,
        "program": AGENT.name,
        "socket": desk.socket,
        "spawn": spawn,
    }
    adapter = TmuxAdapter(name, TmuxSettings.model_validate({**given, "prompt": "^>$"}))

    def kill() -> None:
        for each in _marked(desk, name):
            desk.run("kill-pane", "-t", each)

    return Case(adapter, lambda: ["".join(each["pasted"]) for each in desk.told(name)], kill)


def _marked(desk: Terminals, name: str) -> list[str]:
    return desk.run(
        "list-panes", "-a", "-f", f"#{{==:#{{@gofer_runtime}},{name}}}", "-F", "#{pane_id}"
    ).splitlines()


def _by_protocol(folder: Path) -> Case:
    command = [sys.executable, str(ACP_AGENT), str(folder)]
    settings = AcpSettings.model_validate({"agent": "coder", "kind": "acp", "command": command})
    state = RuntimeState(StateFolder(folder / "state"), "coder")

    def told() -> list[str]:
        path = folder / "log"
        entries = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        return [what for kind, what in entries if kind == "prompt"]

    def kill() -> None:
        assert state.process is not None
        os.killpg(state.process[0], signal.SIGKILL)

    return Case(AcpAdapter("coder", settings, state), told, kill)


async def test_a_text_arrives_once_and_is_written_down_before(case: Case) -> None:
    assert (await case.adapter.look()).state == "idle"
    carried = await carry_out(case.adapter, text="say hello", on_begin=lambda: _assert_untold(case))
    assert carried.outcome[0] in ("delivered", "answered")
    assert carried.begun == 1
    await eventually(case.told, within=10)
    assert case.told() == ["say hello"]


def _assert_untold(case: Case) -> None:
    assert case.told() == []


async def test_what_cannot_be_told_is_refused_and_nothing_is_begun(case: Case) -> None:
    for text, reason in (("\x00\x1b[2J", "text.empty"), ("x" * (MAX_TEXT + 1), "text.too_long")):
        carried = await carry_out(case.adapter, text=text)
        assert (carried.outcome, carried.begun) == (("failed", reason), 0)
    assert case.told() == []


async def test_an_agent_that_was_killed_is_gone_until_a_new_one_is_started(case: Case) -> None:
    case.kill()
    await eventually(lambda: _is_offline(case.adapter), within=10)
    carried = await carry_out(case.adapter)
    assert (carried.outcome, carried.begun) == (("failed", "runtime.gone"), 0)
    assert case.adapter.can_spawn
    spawned = await carry_out(case.adapter, "spawn", text="say back", summary="They talked.")
    assert spawned.outcome[0] in ("delivered", "answered")
    await eventually(case.told, within=10)
    assert case.told() == ["They talked.\n\nsay back"]
    assert (await case.adapter.look()).alive


async def _is_offline(adapter: Adapter) -> bool:
    return (await adapter.look()).state == "offline"
