"""A real process that speaks the Agent Client Protocol, well and badly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gofer.runtime_host.acp import AcpAdapter
from gofer.runtime_host.configuration import AcpSettings
from gofer.runtime_host.interfaces import MAX_ANSWER
from gofer.runtime_host.state import RuntimeState, StateFolder
from support.patience import eventually, patience

from .order_runs import carry_out

AGENT = Path(__file__).parents[2] / "support" / "acp_agent.py"


class Scene:
    """Adapters over agents that write down in a folder what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[AcpAdapter] = []

    async def open(self) -> AcpAdapter:
        adapter = self.adapter()
        await adapter.open()
        return adapter

    def adapter(self, mode: str = "", **more: Any) -> AcpAdapter:
        given = {
            "agent": "coder",
            "kind": "acp",
            "command": [sys.executable, str(AGENT), str(self.folder), mode],
            "cwd": str(self.folder),
            **more,
        }
        state = RuntimeState(StateFolder(self.folder / "state"), "coder")
        adapter = AcpAdapter("coder", AcpSettings.model_validate(given), state)
        self.opened.append(adapter)
        return adapter

    @property
    def log(self) -> list[Any]:
        path = self.folder / "log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for adapter in made.opened:
        await adapter.close()


async def test_a_prompt_is_answered_in_pieces_and_people_are_asked_for_permission(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_TOKEN", "gofer_secret")
    adapter = await scene.open()
    assert (await adapter.look()).state == "idle"
    carried = await carry_out(adapter, "prompt", text="say the cake is a lie")
    assert carried.result is not None
    assert carried.outcome == ("answered", "")
    assert carried.result.text == "the cake is a lie"
    assert [each.status for each in carried.reports] == ["acknowledged"]
    assert carried.begun == 1
    assert "GOFER_TOKEN" not in dict(scene.log)["environment"]

    permitted = await carry_out(adapter, "prompt", text="permit cake", answer="Yes")
    assert permitted.questions == [("The agent asks for permission: rm -rf cake", ["Yes", "No"])]
    assert json.loads(permitted.result.text) == {"outcome": "selected", "optionId": "a"}  # type: ignore[union-attr]
    for nobody in (None, "Something else"):
        denied = await carry_out(adapter, "prompt", text="permit cake", answer=nobody)
        assert json.loads(denied.result.text) == {"outcome": "cancelled"}  # type: ignore[union-attr]

    assert (await carry_out(adapter, "prompt", text="refuse")).outcome == ("failed", "runtime.refused")
    assert (await carry_out(adapter, "prompt", text="nothing")).outcome == ("failed", "runtime.no_words")
    nonsense = await carry_out(adapter, "prompt", text="nonsense")
    assert nonsense.result is not None
    assert nonsense.result.text == "sense"


async def test_more_than_anybody_reads_is_cut_or_thrown_away(scene: Scene) -> None:
    adapter = await scene.open()
    long = await carry_out(adapter, "prompt", text="flood 1000000")
    assert long.result is not None
    assert len(long.result.text) == MAX_ANSWER
    huge = await carry_out(adapter, "prompt", text="flood 50000000")
    assert huge.result is not None
    assert huge.result.text == "after"


async def test_an_agent_that_hangs_is_cancelled_and_one_that_does_not_hear_that_is_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runtime_host.acp.CANCEL_TIMEOUT", 0.5)
    monkeypatch.setattr("gofer.runtime_host.acp.END_TIMEOUT", 0.1)
    adapter = await scene.open()
    assert (await carry_out(adapter, "prompt", text="hang", ack_within=0.3)).outcome == (
        "failed",
        "runtime.silent",
    )
    assert ["cancel", "session-1"] in scene.log
    assert (await adapter.look()).state == "idle"
    assert (await carry_out(adapter, "prompt", text="deaf", ack_within=0.3)).outcome == (
        "failed",
        "runtime.silent",
    )
    assert (await adapter.look()).state == "offline"
    assert adapter.crashes == 0


async def test_an_agent_that_dies_is_resumed_in_its_session_or_started_anew(scene: Scene) -> None:
    adapter = await scene.open()
    assert (await carry_out(adapter, "prompt", text="die")).outcome == ("failed", "runtime.crashed")
    assert adapter.crashes == 1, "known with the end of the turn"
    assert await _is_offline(adapter)
    assert (await carry_out(adapter, "prompt")).outcome == ("failed", "runtime.gone")
    assert adapter.can_resume
    resumed = await carry_out(adapter, "resume", text="say here again")
    assert resumed.result is not None
    assert (resumed.result.text, resumed.result.session) == ("here again", "session-1")
    spawned = await carry_out(adapter, "spawn", text="say hello", summary="/They talked\x1b[0m about cats.")
    assert spawned.result is not None
    assert (spawned.result.text, spawned.result.session) == ("hello", "session-2")
    assert ["prompt", "Gofer: /They talked about cats.\n\nsay hello"] in scene.log
    assert adapter.crashes == 1, "what the host ends has not crashed"
    os.kill((await _process(adapter)).pid, signal.SIGKILL)
    await eventually(lambda: _is_offline(adapter), within=10)
    assert adapter.crashes == 2


async def test_a_program_that_ends_while_it_starts_has_crashed(scene: Scene) -> None:
    adapter = scene.adapter(command=[sys.executable, "-c", "import sys; sys.exit('no key')"])
    for number in (1, 2):
        carried = await carry_out(adapter, "spawn")
        assert carried.outcome == ("failed", "spawn.failed")
        assert "no key" in carried.complaint
        assert adapter.crashes == number


async def _is_offline(adapter: AcpAdapter) -> bool:
    return (await adapter.look()).state == "offline"


async def test_a_host_that_was_killed_finds_the_session_again_and_leaves_no_process(scene: Scene) -> None:
    first = await scene.open()
    process = (await _process(first)).pid
    second = await scene.open()  # as after kill -9: nobody closed the first
    assert ["loaded", "session-1"] in scene.log
    await eventually(lambda: _is_offline(first), within=10)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert (await carry_out(second, "prompt", text="say hi")).outcome == ("answered", "")


async def _process(adapter: AcpAdapter) -> Any:
    assert adapter._agent is not None
    return adapter._agent.process


@pytest.mark.parametrize("mode", ["mute", "garbage", "version"])
async def test_a_process_that_does_not_speak_the_protocol_is_ended(
    scene: Scene, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runtime_host.acp.END_TIMEOUT", 0.1)
    adapter = scene.adapter(mode, ready_within=patience(2) if mode == "version" else 0.5)
    assert (await carry_out(adapter, "resume")).outcome == ("failed", "resume.failed"), "there is no session"
    assert (await carry_out(adapter, "spawn")).outcome == ("failed", "spawn.failed")
    assert (await adapter.look()).state == "offline"


async def test_a_command_that_is_not_there_is_said_so(scene: Scene) -> None:
    adapter = scene.adapter(command=["/nowhere/at-all"])
    assert (await carry_out(adapter, "spawn")).outcome == ("failed", "spawn.failed")


async def test_an_agent_has_one_turn_at_a_time_and_can_be_stopped(scene: Scene) -> None:
    adapter = await scene.open()
    over = asyncio.Event()
    turn = asyncio.create_task(carry_out(adapter, "prompt", text="hang", over=over))
    await eventually(lambda: ["prompt", "hang"] in scene.log, within=10)
    assert (await carry_out(adapter, "prompt")).outcome == ("failed", "runtime.busy")
    over.set()
    assert (await turn).outcome == ("failed", "trigger.over")
    assert ["cancel", "session-1"] in scene.log
    assert (await carry_out(adapter, "prompt", over=over)).outcome == ("failed", "trigger.over")
    assert len([kind for kind, _ in scene.log if kind == "prompt"]) == 1, "nothing new is told"
    os.killpg((await _process(adapter)).pid, signal.SIGKILL)
    await eventually(lambda: _is_offline(adapter), within=10)
