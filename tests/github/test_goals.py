"""A goal on an issue: a checklist in the sticky comment, which becomes the report; its pull request refers to it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from gofer.integration import PlanItem, Progress
from gofer.jobs.notifications import JOBS
from gofer.store.tables import bindings, goals, participants, replies, tasks
from gofer_github import integration
from gofer_github.triggers import spoken
from support.github_scene import Scene, gofer, tool
from support.nudging import nudge
from support.patience import patiently

PULL = {
    "title": "Spell it right",
    "changed": "One letter.",
    "why": "Typo.",
    "tested": "Read.",
    "uncertain": "-",
}
STEPS = (
    tool("github_checkout"),
    "$ cd ~/repo && echo hello > greeting.txt && git add -A && git commit -qm 'Spell it right'",
    "$ cd ~/repo && git push -q origin HEAD 2>&1",
    tool("github_open_pull", **PULL),
)


def test_what_is_wanted_of_a_goal_may_be_longer_than_a_line() -> None:
    said = spoken("Hello.\n\n/gofer goal fix this\nand that\n\n- also this", "gofer")
    assert (said.command, said.trigger) == ("goal", "command")
    assert said.arguments.startswith("fix this\nand that")
    assert "also this" in said.arguments
    assert spoken("/gofer status now\nand more", "gofer").arguments == "now"


async def test_the_sticky_comment_of_a_goal_is_a_checklist(scene: Scene) -> None:
    issue = await scene.github.open_issue("ada", scene.repository, "Broken")
    await scene.github.comment("ada", scene.repository, issue.number, "/gofer goal fix it")
    plan = (PlanItem("Look", "done"), PlanItem("Fix", "doing"), PlanItem("Test"), PlanItem("Sing", "dropped"))
    wanted = Progress(12, 1, message="comment-1", plan=plan, goal="fix it", offers=("goal pause goal_x",))
    place = f"{scene.repository.full_name}#{issue.number}"
    shown = await integration.show_progress(place, wanted, "", scene.account())
    assert await integration.show_progress(place, wanted, shown, scene.account()) == shown
    (comment,) = scene.ours(issue.number)
    assert "### Goal: fix it" in comment.body
    assert "- [x] Look\n- [ ] **Fix**\n- [ ] Test\n- [ ] ~~Sing~~" in comment.body
    assert "1 of 4 tasks done" in comment.body
    assert "`/gofer goal pause goal_x`" in comment.body


async def test_a_nudge_on_an_issue_says_what_to_write_where_there_are_no_buttons(
    scene: Scene, tmp_path: Path
) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        await scene.github.comment("ada", scene.repository, issue.number, "@gofer hello")
        await running.quiet()
        (place,) = await running.rows(select(bindings.c.conversation_id))
        platform = running.platform
        await platform.database.write(partial(nudge, vault=platform.vault, conversation_id=place[0]))
        platform.signals.wake(JOBS)
        await running.quiet()
        comment = scene.ours(issue.number)[-1].body
        assert "You wanted to name the branch." in comment
        assert "tell me “Use the branch main.”" in comment
        assert "write `/gofer goal Plan the release.`" in comment
        assert "write `/gofer mute`" in comment
        assert "button" not in comment
        await scene.github.comment("ada", scene.repository, issue.number, "/gofer mute")
        await running.quiet()
        assert "`/gofer unmute`" in scene.ours(issue.number)[-1].body
        (muted,) = await running.rows(select(participants.c.muted_at))
        assert muted[0] is not None


@pytest.mark.slow
async def test_a_goal_on_an_issue_ends_in_one_comment_and_a_pull_request_that_refers_to_it(
    scene: Scene, tmp_path: Path
) -> None:
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        await scene.github.comment("ada", scene.repository, issue.number, "\n".join(["/gofer goal", *STEPS]))
        async with patiently(60):
            while not [
                one for one in scene.ours(issue.number) if "### Goal" in one.body and "- [ ] " in one.body
            ]:
                await asyncio.sleep(0.02)
        await running.quiet()
        (goal,) = await running.rows(select(goals))
        states = [row.state for row in await running.rows(select(tasks.c.state).where(tasks.c.number > 0))]
        finals = await running.rows(select(replies.c.id).where(replies.c.kind == "final"))
    assert (goal.state, states) == ("done", ["done"] * 4)
    assert len(finals) == 1
    (report,) = scene.ours(issue.number)
    assert "Goal:" not in report.body, "the checklist has become the report"
    assert "<summary>The plan</summary>\n\n- [x] " in report.body
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    assert f"Part of the goal whose checklist is in #{issue.number}." in pull.body
    assert f"Fixes #{issue.number}" in pull.body
