"""GitHub's rate limits: waited out, by everybody whom they concern, and by nobody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select

from gofer.errors import Temporary
from gofer.integration import Outgoing
from gofer.store.tables import attempts, events
from gofer_github import access, integration
from gofer_standins.github import Fault
from support.github_scene import Scene, asked, gofer, tool, use


async def test_a_short_limit_is_waited_out_within_the_call(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        scene.github.faults.append(Fault("limited", "POST /labels", 1))
        words = ["@gofer", tool("github_label", labels=["bug"])]
        await scene.github.open_issue("ada", scene.repository, "Broken", "\n".join(words))
        await running.quiet()
        kinds = [row.kind for row in await running.rows(select(events.c.kind))]
    assert "Put on: bug." in scene.ours(1)[-1].body
    assert "tool.delayed" not in kinds
    assert scene.repository.issues[1].labels == ["bug"]


async def test_a_long_limit_puts_the_run_off_and_the_call_is_made_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run holds nothing meanwhile, the model hears nothing of it, and its write happens once."""
    monkeypatch.setattr(access, "MAX_SHORT_WAIT", 0.1)
    async with gofer(scene, tmp_path / "data") as running:
        scene.github.faults.append(Fault("limited", "POST /labels", 2))
        words = ["@gofer", tool("github_label", labels=["bug"])]
        await scene.github.open_issue("ada", scene.repository, "Broken", "\n".join(words))
        await running.quiet()
        (job,) = await running.jobs(lambda row: row.kind == "answer")
        tries = await running.rows(select(attempts).where(attempts.c.job_id == job.id))
        kinds = [row.kind for row in await running.rows(select(events.c.kind))]
    assert (tries[0].outcome, tries[0].reason) == ("snoozed", "service.wait")
    assert kinds.count("tool.delayed") == 1
    reply = scene.ours(1)[-1].body
    assert "Put on: bug." in reply
    assert "rate limit" not in reply
    assert scene.repository.issues[1].labels == ["bug"]


async def test_one_limit_is_known_to_all_requests_of_an_installation(scene: Scene) -> None:
    """And to no other: each owner has a budget of their own."""
    other = scene.github.create_repository("globex/gears", {"a": "a"}, ada="write")
    scene.github.install(scene.app, "globex/gears")
    await scene.github.open_issue("ada", scene.repository, "Broken")
    await scene.github.open_issue("ada", other, "Broken too")
    account = scene.account()
    scene.github.faults.append(Fault("limited", "POST /issues/1/comments", 30))
    with pytest.raises(Temporary):
        await integration.place(Outgoing("gofer-1-final-1", "acme/widgets#1", "Hello."), account)
    asked_before = len(scene.github.calls)
    with pytest.raises(Temporary) as caught:
        await integration.find(Outgoing("gofer-2-final-1", "acme/widgets#1", "Hello."), account)
    assert 20 < (caught.value.retry_after or 0) <= 30
    assert len(scene.github.calls) == asked_before, "GitHub was not asked again"
    await integration.place(Outgoing("gofer-3-final-1", "globex/gears#1", "Hello."), account)
    assert len(other.comments) == 1


async def test_who_has_used_up_the_budget_asks_no_more_until_its_reset(scene: Scene) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken")
    message = await asked(scene, "@gofer look")
    await use(scene, message, "github_read")
    scene.github.limits.requests, scene.github.limits.reset_at = 1, time.time() + 2000
    await scene.github.comment("ada", scene.repository, 1, "More")
    with pytest.raises(Temporary) as caught:
        await use(scene, message, "github_read")
    assert 1900 < (caught.value.retry_after or 0) <= 2001
    assert not [status for _, _, status in scene.github.calls if status == 403]
