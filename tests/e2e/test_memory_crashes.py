"""Die inside an eviction or a summary, and just after it, and find every result kept once, to the byte."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer.crash import EXIT_CODE
from gofer.store.tables import events, memories
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from support.patience import eventually

TURNS = 12
TIMES = 300
SIZES = {
    "context.cleared": "clear_at = 1000\nclear_batch = 500\ncompact_at = 12000\nkeep_rounds = 1",
    "context.checkpoint": "clear_at = 20000\nclear_batch = 20000\ncompact_at = 9000\nkeep = 500",
}
"""Settings under which an agent evicts, and under which it sums up."""
SUMMARY = "Goal: g\nConstraints: c\nProgress: p\nDecisions: d\nNext steps: n\nFiles: f"
QUICK = {("memory.keeping", "context.checkpoint", "sqlite"), ("memory.kept", "context.cleared", "postgresql")}
CRASHES = [
    pytest.param(
        point,
        kind,
        database,
        id=f"{database}-{point}-{kind}",
        marks=() if (point, kind, database) in QUICK else pytest.mark.slow,
    )
    for point in ("memory.keeping", "memory.kept")
    for kind in SIZES
    for database in ("sqlite", "postgresql")
]
STONE = re.compile(r"\[(mem_[a-z0-9]+) evicted: mark (m\d+) ")


class Script:
    """Leaves marks, then recalls what one of them gave, then answers."""

    def __init__(self) -> None:
        self.turns = 0
        self.mark = self.recalled = ""

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        if not request.get("tools"):
            return say(SUMMARY)
        if self.turns < TURNS:
            self.turns += 1
            return calls(call("mark", line=f"m{self.turns} ", times=TIMES))
        blocks = [block for message in request["messages"] for block in message["content"]]
        results = [str(block["content"][0]["text"]) for block in blocks if block["type"] == "tool_result"]
        if results and results[-1].startswith("[mem_"):
            self.recalled = results[-1]
            return say("Done.")
        texts = [*results, *(block["text"] for block in blocks if block["type"] == "text")]
        found = next(each for text in texts if (each := STONE.search(text)))
        self.mark = found[2]
        return calls(call("recall", id=found[1], full=True))


@pytest.mark.parametrize(("point", "kind", "database_url"), CRASHES, indirect=["database_url"])
async def test_what_leaves_the_prompt_is_kept_once_by_dying_at(
    point: str, kind: str, database_url: str, data_dir: Path
) -> None:
    script = Script()
    model = Anthropic(script)
    url = "" if database_url.startswith("sqlite") else database_url
    async with (
        loopback.serve(model.app) as address,
        prepared(data_dir, url, anthropic_key=model.key, anthropic_base_url=address) as scenario,
    ):
        (data_dir / "agents").mkdir()
        (data_dir / "agents" / "gofer.toml").write_text(f"[context]\n{SIZES[kind]}\n")
        dying = scenario.start(crash_at=point).wait_until_ready()
        await scenario.say("1", "kitchen", "Leave marks.")
        await _death(dying)
        assert await _count(scenario, kind) == (point == "memory.kept"), "the event and what it keeps are one"
        assert bool(await _kept(scenario)) == (point == "memory.kept")
        living = scenario.start().wait_until_ready()
        assert await scenario.settle(60), await scenario.findings()
        assert living.stop() == 0
        assert not await scenario.findings()
        _, _, words = script.recalled.partition("\n")
        assert words == "\n".join([f"marked {script.mark} "] * TIMES), "to the byte"
        kept = await _kept(scenario)
        assert len(kept) == len(set(kept)), "each result once"
        marks = Path(scenario.environment["GOFER_TEST_MARKS"]).read_text().split()
        assert sorted(marks) == sorted(f"m{number}" for number in range(1, TURNS + 1)), "each mark once"
    assert model.refused == []


async def _death(gofer: Gofer) -> None:
    await eventually(lambda: gofer.ended, within=30)
    assert gofer.exit_code == EXIT_CODE, gofer.log.read_text()[-2000:]


async def _count(scenario: Scenario, kind: str) -> int:
    query = select(events.c.id).where(events.c.kind == kind)
    return len(await scenario.read(lambda connection: connection.execute(query).all()))


async def _kept(scenario: Scenario) -> list[str]:
    """The calls whose results are kept."""
    query = select(memories.c.call_id).where(memories.c.kind == "result")
    return list(await scenario.read(lambda connection: connection.execute(query).scalars().all()))
