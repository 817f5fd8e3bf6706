"""Die inside an eviction, a summary or what the memory manager does, and just after it, and find everything kept once,
to the byte."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from e2e.invariants import settled
from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer.app import open_app
from gofer.crash import EXIT_CODE
from gofer.memory.notes import keep_note
from gofer.memory.scopes import agent_scope
from gofer.settings import Settings
from gofer.store.tables import agents, events, memories, spends
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


NOTES = (
    "The code of the gate is 1111",
    "Tea at five.",
    "The boat of Ann is called Gannet",
    "The code of the gate is 2222",
    "tea at FIVE",
    "The boat of Ann is called Puffin",
)
LEFT = {"The code of the gate is 2222", "tea at FIVE", "The boat of Ann is called Puffin"}
TIDYING = [
    pytest.param(
        point,
        database,
        id=f"{database}-{point}",
        marks=() if (point, database) in {("memory.tidying", "sqlite")} else pytest.mark.slow,
    )
    for point in ("memory.tidying", "memory.tidied", "memory.tidied:2")
    for database in ("sqlite", "postgresql")
]


@pytest.mark.parametrize(("point", "database_url"), TIDYING, indirect=["database_url"])
async def test_notes_are_tidied_once_by_dying_at(point: str, database_url: str, data_dir: Path) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    async with prepared(data_dir, url) as scenario:
        ids = await _note(Settings(data_dir=data_dir, database_url=url))
        await _death(scenario.start(crash_at=point).wait_until_ready())
        done = 0 if point == "memory.tidying" else int(point.partition(":")[2] or 1)
        assert await _changes(scenario) == done
        living = scenario.start().wait_until_ready()

        async def tidied() -> bool:
            return await _changes(scenario) == 3

        await eventually(tidied, within=60)
        assert await scenario.settle(60)
        found = (await scenario.control("GET", "/memories?scope=agent:gofer&limit=50")).json()["memories"]
        assert {each["text"] for each in found if each["state"] == "live"} == LEFT
        for memory_id in ids:  # nothing is lost
            there = await scenario.control("GET", f"/memories/{memory_id}")
            assert there.status_code == 200, there.text
            assert any(each["text"] in NOTES for each in there.json()["versions"])
        assert living.stop() == 0
        assert await _changes(scenario) == 3, "each once"


async def _note(settings: Settings) -> list[str]:
    async with open_app(settings, roles=frozenset()) as platform:
        found = select(agents.c.id).where(agents.c.name == "gofer")
        agent = await platform.database.read(lambda connection: str(connection.execute(found).scalar_one()))
        keep = partial(keep_note, vault=platform.vault, scope_id=agent_scope(agent), trust="owner")
        return [(await platform.database.write(partial(keep, text=text))).id for text in NOTES]


async def _changes(scenario: Scenario) -> int:
    query = select(events.c.data).where(events.c.kind == "memory.event")
    rows = await scenario.read(lambda connection: connection.execute(query).scalars().all())
    return sum(data["what"] in ("merge", "contradiction") for data in rows)


FILLS = "[context]\nhistory = 500\n"
"""Little room for earlier messages, so that one long message has to be summed up."""
LONG = "The blue cups are on the upper shelf. " * 42
SUMMING_UP = [
    pytest.param(
        point,
        database,
        id=f"{database}-{point}",
        marks=() if (point, database) in {("asked", "sqlite")} else pytest.mark.slow,
    )
    for point in ("asked", "memory.tidying", "memory.tidied")
    for database in ("sqlite", "postgresql")
]


@pytest.mark.parametrize(("point", "database_url"), SUMMING_UP, indirect=["database_url"])
async def test_a_conversation_is_summed_up_once_by_dying_at(
    point: str, database_url: str, data_dir: Path
) -> None:
    """Killed while the model writes the summary, while it is stored, and just after."""
    asked: list[Gofer] = []

    def script(request: Mapping[str, Any]) -> Reply:
        if request.get("tools"):
            return say("Noted.")
        if point == "asked" and len(asked) < len(scenario.started):
            asked.append(scenario.started[-1])
            if len(asked) == 1:
                asked[0].signal(signal.SIGKILL)
        return say(SUMMARY)

    model = Anthropic(script)
    url = "" if database_url.startswith("sqlite") else database_url
    async with (
        loopback.serve(model.app) as address,
        prepared(data_dir, url, anthropic_key=model.key, anthropic_base_url=address) as scenario,
    ):
        (data_dir / "agents").mkdir()
        (data_dir / "agents" / "gofer.toml").write_text(FILLS)
        dying = scenario.start(crash_at="" if point == "asked" else point).wait_until_ready()
        await scenario.say("1", "kitchen", LONG)
        await eventually(lambda: dying.ended, within=60)
        assert dying.exit_code in (EXIT_CODE, -signal.SIGKILL), dying.log.read_text()[-2000:]
        assert len(await _summaries(scenario)) == (point == "memory.tidied"), "whole or not at all"
        living = scenario.start().wait_until_ready()

        async def summed_up() -> bool:
            return await scenario.read(settled) and len(await _summaries(scenario)) == 1

        await eventually(summed_up, within=60)
        await scenario.say("2", "kitchen", "And where are the cups?")
        assert await scenario.settle(60), await scenario.findings()
        assert living.stop() == 0
        assert not await scenario.findings()
        assert len(await _summaries(scenario)) == await _count(scenario, "context.checkpoint") == 1
        query = select(spends.c.settled, spends.c.micros).where(spends.c.key.startswith("summary:"))
        (paid,) = await scenario.read(lambda connection: connection.execute(query).all())
        assert (paid.settled, paid.micros > 0) == (True, True), "one charge, for one summary"
        prompt = str([each for each in model.received if each.get("tools")][-1]["messages"])
        assert (SUMMARY.splitlines()[0] in prompt, prompt.count("<summary>")) == (True, 1)
    assert model.refused == []


async def _summaries(scenario: Scenario) -> list[Any]:
    query = select(memories.c.id).where(memories.c.kind == "summary")
    return list(await scenario.read(lambda connection: connection.execute(query).scalars().all()))
