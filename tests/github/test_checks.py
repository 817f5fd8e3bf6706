"""Checks: our own say how a run ended and wake nobody; those of others wake us on our own pull requests."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from sqlalchemy import select

from gofer.store.tables import events
from gofer.tool import ToolContext
from gofer_github import integration
from gofer_standins.github import git
from support.github_scene import Scene, asked, gofer, tool, use
from support.patience import patiently


async def told_of_checks(scene: Scene, events: int) -> None:
    """Wait until GitHub has told of so many ended suites, and was answered."""
    async with patiently(30):
        while True:
            told = [one for one in scene.github.world.deliveries if one.event == "check_suite"]
            if len(told) >= events and all(one.status_code for one in told):
                return
            await asyncio.sleep(0.02)


async def test_our_own_red_check_wakes_nobody(scene: Scene, tmp_path: Path) -> None:
    """GitHub tells an App of its own checks like of anybody's."""
    git.commit(scene.repository.path, {"a.txt": "a"}, "gofer/9", "A change")
    limits = tmp_path / "workflows"
    limits.mkdir()
    (limits / "one.toml").write_text('instructions = "Once."\n[limits]\nsteps = 1\n')
    words = ["@gofer look", *(tool("github_file", path="README.md") for _ in range(4))]
    started = select(events.c.id).where(events.c.kind == "run.started")
    async with gofer(scene, tmp_path / "data", workflows=str(limits)) as running:
        pull = await scene.github.open_pull("ada", scene.repository, "gofer/9")
        pull.user = scene.app.user
        await scene.github.comment("ada", scene.repository, pull.number, "\n".join(words))
        await running.quiet()
        await told_of_checks(scene, 1)
        await running.quiet()
        runs = await running.rows(started)
        assert len(runs) == 1, "it was told of its own red check, and woke nobody"
        (check,) = scene.repository.check_runs.values()
        (reply,) = scene.ours(pull.number)
        # The same word of another App does wake it.
        await scene.github.fail_checks(scene.repository, pull.number)
        await told_of_checks(scene, 2)
        await running.quiet()
        woken = await running.rows(started)
    assert check.conclusion == "failure"
    assert len(woken) == 2
    assert "Done" not in reply.body
    assert "⚠️ Stopped before it was done (limit.steps)" in reply.body, reply.body


async def test_a_stop_concludes_as_cancelled(scene: Scene, tmp_path: Path) -> None:
    git.commit(scene.repository.path, {"a.txt": "a"}, "gofer/9", "A change")
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        pull = await scene.github.open_pull("ada", scene.repository, "gofer/9")
        pull.user = scene.app.user
        await scene.github.comment("ada", scene.repository, pull.number, "@gofer wait\n$ sleep 60")
        await running.began()
        async with patiently(30):
            while not scene.repository.check_runs:
                await asyncio.sleep(0.02)
        await scene.github.comment("ada", scene.repository, pull.number, "/gofer stop")
        await running.quiet()
        await told_of_checks(scene, 1)
        await running.quiet()
        runs = await running.rows(select(events.c.id).where(events.c.kind == "run.started"))
    (check,) = scene.repository.check_runs.values()
    assert (check.status, check.conclusion) == ("completed", "cancelled")
    assert len(runs) == 1
    assert any("⏹ Stopped in" in one.body for one in scene.ours(pull.number))
    assert not any("Done" in one.body for one in scene.ours(pull.number))


async def test_commit_statuses_stand_beside_checks(scene: Scene) -> None:
    git.commit(scene.repository.path, {"a.txt": "a"}, "gofer/9", "A change")
    pull = await scene.github.open_pull("ada", scene.repository, "gofer/9")
    for state in ("pending", "failure"):
        await scene.github.set_status(scene.repository, pull.number, "ci/old", state)
    message = await asked(scene, "@gofer why?", pull.number)
    told = await use(scene, message, "github_checks")
    assert told.content == "ci/old (a status): failure It said so. https://ci.example/1"
    (place,) = scene.github.world.installations.values()
    del place.permissions["statuses"]
    await scene.github.comment("ada", scene.repository, pull.number, "@gofer again")
    scene.github.world.tokens.clear()
    account = dataclasses.replace(scene.account(), id="github_2")
    (checks,) = [one for one in integration.tools(account, message) if one.name == "github_checks"]
    told = await checks.run(checks.arguments(), ToolContext("call-2"))
    assert "it lacks statuses: read" in told.content


async def test_a_failing_status_on_our_own_pull_request_wakes_us_only_so_often(
    scene: Scene, tmp_path: Path
) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        git.commit(scene.repository.path, {"a.txt": "a"}, f"gofer/{issue.number}", "A change")
        pull = await scene.github.open_pull("ada", scene.repository, f"gofer/{issue.number}")
        await scene.github.set_status(scene.repository, pull.number, "ci/old", "failure")
        await running.quiet()
        assert scene.ours(issue.number) == [], "it is ada's"
        pull.user = scene.app.user
        await scene.github.set_status(scene.repository, pull.number, "ci/old", "success")
        for _ in range(4):
            await scene.github.set_status(scene.repository, pull.number, "ci/old", "failure")
            await running.quiet()
    assert len(scene.ours(issue.number)) == 2


async def test_re_run_of_our_own_check_does_it_again(scene: Scene, tmp_path: Path) -> None:
    git.commit(scene.repository.path, {"a.txt": "a"}, "gofer/9", "A change")
    async with gofer(scene, tmp_path / "data") as running:
        pull = await scene.github.open_pull("ada", scene.repository, "gofer/9")
        await scene.github.comment("ada", scene.repository, pull.number, "@gofer look")
        await running.quiet()
        (check,) = scene.repository.check_runs.values()
        await scene.github.rerun("mallory", scene.repository, check)
        await running.quiet()
        assert len(scene.ours(pull.number)) == 1
        await scene.github.rerun("ada", scene.repository, check)
        await running.quiet()
    assert len(scene.ours(pull.number)) == 2
    assert [one.status for one in scene.repository.check_runs.values()] == ["completed"] * 2
