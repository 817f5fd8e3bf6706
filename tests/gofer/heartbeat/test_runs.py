"""What a heartbeat's run may decide, and that whatever it answers or whatever is gone by then harms nobody."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.agent.limits import Short
from gofer.heartbeat.nudges import Nudge
from gofer.heartbeat.records import spent_today
from gofer.heartbeat.runs import HeartbeatLedger, HeartbeatRuns, NudgeDecision, own_limits, read_decision
from gofer.jobs.outcome import Done
from gofer.jobs.worker import Run
from gofer.memory.recall import Recall
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.heartbeat_settings import HeartbeatSettings
from gofer.settings import Settings
from gofer.store.tables import heartbeat_findings, jobs, replies
from gofer.vault.redaction import Redactor
from support.world import World

from .test_beats import ON, beat, question, watch

NUDGE = {"do": "nudge", "findings": [1], "text": "Tea?"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Of course! I will write to everybody at once.",
        "{",
        "}{",
        "[" * 100_000,
        '{"do": "shout"}',
        '{"do": "nudge"}',
        '{"do": "nudge", "text": ""}',
        json.dumps({**NUDGE, "text": "x" * 1001}),
        json.dumps({**NUDGE, "actions": [{"label": "a", "say": "b"}] * 4}),
        json.dumps({**NUDGE, "actions": [{"label": "a" * 41, "say": "b"}]}),
        json.dumps({**NUDGE, "to": "conv_of_somebody_else"}),
        '{"do": "research", "title": "x"}',
    ],
)
def test_what_is_no_decision_is_silence(text: str) -> None:
    assert read_decision(text).do == "silent"


def test_a_decision_may_stand_in_words_or_in_a_block_of_code() -> None:
    wish = read_decision(f"I think so.\n```json\n{json.dumps(NUDGE)}\n```")
    assert isinstance(wish, NudgeDecision)
    assert wish.text == "Tea?"


def runs(world: World, folder: Path) -> HeartbeatRuns:
    settings = Settings(data_dir=folder)
    keys: Any = None
    return HeartbeatRuns(
        settings=settings,
        database=world.database,
        vault=world.vault,
        redactor=Redactor(),
        keys=keys,
        agents=AgentFiles(folder / "agents"),
        recall=Recall(world.database, world.vault),
    )


async def due(world: World) -> Run:
    """A heartbeat's job in hand."""
    await question(world)
    assert await beat(world, await watch(world)) == 1
    (job,) = await world.rows(select(jobs).where(jobs.c.kind == "heartbeat"))
    (claim,) = [each for each in await world.claim(5, pool="service") if each.id == job.id]
    return Run(claim)


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        (None, "not_found"),
        ("[heartbeat]\nenabled = false\n", "switched off"),
        ("[heartbeat]\nenabled = true\nbudget = 0\n", "switched off"),
    ],
)
async def test_what_is_gone_or_switched_off_by_then_is_dropped_without_a_word(
    world: World, tmp_path: Path, toml: str | None, reason: str
) -> None:
    run = await due(world)
    if toml is not None:
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "gofer.toml").write_text(toml)
    before = await world.count(replies)
    outcome = await runs(world, tmp_path).handle(run)
    assert isinstance(outcome, Done)
    assert outcome.drafts == ()
    (row,) = await world.rows(select(heartbeat_findings))
    assert (row.state, row.reason) == ("dropped", reason)
    assert await world.count(replies) == before
    assert isinstance(await runs(world, tmp_path).handle(run), Done), "again, and nothing more happens"


async def test_a_run_never_spends_more_than_the_days_budget(world: World) -> None:
    run = await due(world)
    spec = AgentSpec(name="gofer", heartbeat=ON.model_copy(update={"budget": 0.1}))
    ledger = HeartbeatLedger(database=world.database, claim=run.claim, timezone="UTC", spec=spec)
    caps = own_limits(spec).caps(background=True)
    assert caps["background"] == 100_000
    assert await ledger.reserve("turn:1", 60_000, caps, background=True) is None
    assert await ledger.reserve("turn:1", 60_000, caps, background=True) is None, "the same call again"
    assert await ledger.reserve("turn:2", 60_000, caps, background=True) == Short("background", 60_000)
    await ledger.settle("turn:1", 10_000, "model")
    assert await ledger.reserve("turn:2", 60_000, caps, background=True) is None
    spent = partial(spent_today, agent_id=str(run.claim.agent_id), timezone="UTC")
    assert await world.database.read(spent) == 70_000


async def test_the_agents_budget_for_the_background_holds_as_well(world: World) -> None:
    run = await due(world)
    limits = AgentSpec(name="gofer").limits.model_copy(update={"background_day_dollars": 0.05})
    spec = AgentSpec(name="gofer", limits=limits, heartbeat=ON)
    ledger = HeartbeatLedger(database=world.database, claim=run.claim, timezone="UTC", spec=spec)
    caps = own_limits(spec).caps(background=True)
    short = await ledger.reserve("turn:1", 60_000, caps, background=True)
    assert short is not None
    assert short.scope == "background"


def test_a_run_is_small_whatever_its_agent_may_do() -> None:
    spec = AgentSpec(name="gofer", heartbeat=HeartbeatSettings(budget=0.3))
    limits = own_limits(spec)
    assert (limits.steps, limits.job_dollars, limits.background_dollars) == (4, 0.3, 0.25)
    boundless = spec.limits.model_copy(update={"job_dollars": 0, "background_dollars": 0, "day_dollars": 0})
    limits = own_limits(spec.model_copy(update={"limits": boundless}))
    assert (limits.job_dollars, limits.background_dollars) == (0.3, 0.3), "no cap is not no budget"


async def test_a_button_does_what_it_says(world: World, tmp_path: Path) -> None:
    actions = [{"label": label, "say": f"say {label}"} for label in ("mute", "Go", "GO")]
    wish = read_decision(json.dumps({**NUDGE, "actions": actions}))
    assert isinstance(wish, NudgeDecision)
    made = partial(runs(world, tmp_path)._nudge, AgentSpec(name="gofer"), [], wish)
    nudge: Nudge = made(narrowed=False)
    assert nudge.choices == ("Go", "Mute"), "neither twice nor in the place of the one that mutes"
    assert made(narrowed=True).choices == ("Mute",), "strangers' words get nobody's trust by a press"
