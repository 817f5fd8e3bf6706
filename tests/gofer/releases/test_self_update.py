"""Who may change Gofer, and what becomes of a change: built once, in a sandbox, and never run without approval."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.integration import Author, Incoming
from gofer.jobs.outcome import Dead, Done
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.releases import self_update
from gofer.releases.lifecycle import waiting_releases
from gofer.releases.self_update import SelfUpdate, submit_change
from gofer.runs.agent_files import AgentSpec
from gofer.runs.store_adapters import StoreBlobs
from gofer.settings import Settings
from gofer.store.messages import StoredMessage
from gofer.store.tables import SCHEDULE, Trust, jobs
from gofer.tool import ToolContext
from gofer_supervisor.home import Home
from support.world import World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # no SQL of its own
MAY = AgentSpec(name="gofer", self_update=True)
DIFF = """diff --git a/platform/gofer/new.py b/platform/gofer/new.py
new file mode 100644
index 0..1
--- /dev/null
+++ b/platform/gofer/new.py
@@ -0,0 +1 @@
+{}
"""


def said_by(trust: Trust) -> StoredMessage:
    author = Author("1", "Ann")
    return StoredMessage(1, Incoming("c", author, "Change it.", addressed=True), trust, None)


@pytest.fixture
def update(world: World, tmp_path: Path) -> SelfUpdate:
    settings = Settings(data_dir=tmp_path / "data", build="1.0-abc")
    return SelfUpdate(settings, world.database, world.vault)


@pytest.mark.parametrize(
    ("spec", "trust", "count"),
    [
        (MAY, Trust.OWNER, 2),
        (MAY, Trust.MEMBER, 0),
        (MAY, Trust.STRANGER, 0),
        (AgentSpec(name="gofer"), Trust.OWNER, 0),
    ],
)
async def test_only_an_agent_with_the_right_whom_an_owner_asks_has_the_tools(
    update: SelfUpdate, world: World, spec: AgentSpec, trust: Trust, count: int
) -> None:
    assert len(update.tools(await a_claim(world), spec, said_by(trust))) == count


async def test_a_schedule_or_a_program_in_an_owners_name_has_no_such_tools(
    update: SelfUpdate, world: World
) -> None:
    claim, said = await a_claim(world), said_by(Trust.OWNER)
    for changed in ({"event": SCHEDULE}, {"author": Author("1", "Ann", is_bot=True)}):
        message = replace(said.message, **changed)
        assert update.tools(claim, MAY, replace(said, message=message)) == []


async def test_a_run_that_has_read_strangers_text_cannot_begin(update: SelfUpdate, world: World) -> None:
    for tool in update.tools(await a_claim(world), MAY, said_by(Trust.OWNER)):
        assert tool.reach == "outside"  # closed when narrowed, whatever the tool does
        given = {"summary": "x"} if tool.name == "propose_release" else {}
        result = await tool.run(tool.arguments(**given), ToolContext("call", narrowed=True))
        assert result.is_error
        assert "strangers" in result.content


async def test_without_a_supervisor_nothing_is_proposed(update: SelfUpdate, world: World) -> None:
    alone = replace(update, settings=update.settings.model_copy(update={"build": ""}))
    source, _ = alone.tools(await a_claim(world), MAY, said_by(Trust.OWNER))
    result = await source.run(source.arguments(), ToolContext("call"))
    assert "gofer up" in result.content


async def a_claim(world: World) -> Claim:
    await world.say("Change it.")
    return await world.claim_one()


async def proposed(update: SelfUpdate, world: World, line: str) -> Run:
    """The job that builds a change."""
    claim = await a_claim(world)
    change = {"diff": DIFF.format(line), "summary": "Because.", "agent": "gofer", "by": "Ann"}
    blobs = StoreBlobs(world.database, world.vault, str(claim.conversation_id))
    kept = await blobs.put(json.dumps(change).encode(), "application/json")
    for _ in range(2):
        await world.run(partial(submit_change, claim=claim, call_id="call", change=kept))
    (row,) = await world.rows(select(jobs).where(jobs.c.kind == "release_build"))
    return Run(Claim(**{name: getattr(row, name) for name in Claim._fields}))


async def test_a_change_is_built_and_staged_once_and_waits_for_a_word(
    update: SelfUpdate, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []

    def check(release: Any, **_: Any) -> str:
        checked.append(Path(release.path[0], "gofer", "new.py").read_text())
        return "it works"

    monkeypatch.setattr(
        self_update, "try_release", check
    )  # the sandbox's part is slow: telegram/test_self_update.py
    run = await proposed(update, world, 'NEW = "yes"')
    for _ in range(2):  # the second time as if the worker had died before the end was written
        assert isinstance(await update.build(run), Done)
    assert checked == ['NEW = "yes"\n']
    home = Home(str(update.settings.home_path))
    (build,) = waiting_releases(home)
    manifest = home.manifest(build)
    assert (manifest["source"], manifest["approved_by"], manifest["signed_by"]) == ("change", "", "")
    assert manifest["change"]["diff"] == DIFF.format('NEW = "yes"')
    assert home.asked() is None


async def test_a_change_that_fails_its_check_leaves_nothing(update: SelfUpdate, world: World) -> None:
    run = await proposed(update, world, "this is no Python")
    outcome = await update.build(run)
    assert isinstance(outcome, Done)
    assert outcome.reason == "release.refused"
    home = Home(str(update.settings.home_path))
    assert home.builds() == []


async def test_a_change_whose_conversation_was_purged_is_not_built(update: SelfUpdate, world: World) -> None:
    run = await proposed(update, world, "x = 1")
    gone = Run(run.claim._replace(payload={"change": "0" * 64}))
    assert isinstance(await update.build(gone), Dead)
