"""What people see while work goes on, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.errors import Permanent, Temporary
from gofer.integration import Outgoing, PlanItem, Progress
from gofer.store.db_time import now
from gofer.store.tables import events, jobs
from gofer_github import integration
from gofer_github.access import READ, Access
from gofer_standins.anthropic import Anthropic, fault, say
from gofer_standins.github import Fault, git
from gofer_standins.loopback import serve as loopback
from support.github_scene import Scene, gofer, tool
from support.patience import patiently


async def test_eyes_then_one_comment_that_becomes_the_answer(scene: Scene, tmp_path: Path) -> None:
    """It says that the run waits for an answer, which strangers cannot give; in the end it carries plan, cost,
    duration and the way to the run."""
    plan = [{"text": "Read the code", "state": "done"}, {"text": "Mend it", "state": "doing"}]
    ask = tool("ask_user", question="Shall I?")
    words = ["@gofer", tool("todo", items=plan), ask, "$ echo 'Map<String, Integer>' done"]
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        asked = await scene.github.comment("ada", scene.repository, issue.number, "\n".join(words))
        async with patiently(30):
            while not [one for one in scene.ours(issue.number) if "⏸ Waiting for an answer" in one.body]:
                await asyncio.sleep(0.02)
        await running.quiet()
        shown = scene.ours(issue.number)
        assert [("Waiting" in one.body, "Shall I?" in one.body) for one in shown] == [
            (True, False),
            (False, True),
        ]
        await scene.github.comment("mallory", scene.repository, issue.number, "@gofer no")
        await running.quiet()
        assert len(scene.ours(issue.number)) == 2, "nothing is asked again"
        await scene.github.comment("olga", scene.repository, issue.number, "@gofer yes, do")
        await running.quiet()
        job = (await running.jobs(lambda row: row.kind == "answer"))[-1]
    reply, _ = scene.ours(issue.number)
    assert "Map<String, Integer> done" in reply.body
    assert "Waiting" not in reply.body
    assert asked.reactions == [("gofer[bot]", "eyes")]
    assert "<summary>The plan</summary>\n\n- [x] Read the code\n- [ ] **Mend it**" in reply.body
    link = re.escape(f"[the run](http://gofer.test/runs/{job.id})")
    assert re.search(rf"✅ Done in 0:\d\d · no cost · {link}", reply.body), reply.body


WAITING = ("⏸ Waiting for the model's provider: step 1", "The model's provider makes us wait until")


async def test_a_wait_for_the_model_has_a_comment_of_its_own_and_the_sticky_one_becomes_the_answer(
    scene: Scene, tmp_path: Path
) -> None:
    """Also when somebody else asks something meanwhile: the run answers both, and has shown its progress once."""
    model = Anthropic([fault("rate_limit", retry_after=3600), say("Here it is.")])
    git.commit(scene.repository.path, {"a.txt": "a"}, "change", "A change")
    async with loopback(model.app) as url:
        given: dict[str, Any] = {"anthropic_key": model.key, "anthropic_base_url": url}
        async with gofer(scene, tmp_path / "data", **given) as running:
            pull = await scene.github.open_pull("ada", scene.repository, "change")
            await scene.github.comment("ada", scene.repository, pull.number, "@gofer what is this?")
            async with patiently(40):
                while not all(any(words in one.body for one in scene.ours(pull.number)) for words in WAITING):
                    await asyncio.sleep(0.02)
            working, _ = scene.ours(pull.number)
            await scene.github.comment("olga", scene.repository, pull.number, "@gofer and is it good?")
            await running.platform.database.write(lambda c: c.execute(update(jobs).values(run_at=now())))
            await running.quiet()
            async with patiently(20):  # decoration may lag behind the answer
                while [one for one in scene.repository.check_runs.values() if one.status != "completed"]:
                    await asyncio.sleep(0.02)
    answer, told = scene.ours(pull.number)
    assert (answer.id, "Here it is." in answer.body) == (working.id, True)
    assert "makes us wait" in told.body
    assert len(scene.repository.check_runs) == 1


async def test_the_comment_of_a_working_run_shows_its_plan(scene: Scene) -> None:
    issue = await scene.github.open_issue("ada", scene.repository, "Broken")
    plan = (PlanItem("Read", "done"), PlanItem("Mend\nit"), PlanItem("Rewrite", "dropped"))
    progress = Progress(75, 3, "bash", "1", plan, url="http://gofer.test/runs/7")
    await integration.show_progress(f"acme/widgets#{issue.number}", progress, "", scene.account())
    (shown,) = scene.ours(issue.number)
    assert shown.body.startswith("⏳ Working on it: step 3, using `bash`, 1:15 so far. [See the run.]")
    assert "- [x] Read\n- [ ] Mend it\n- [ ] ~~Rewrite~~" in shown.body


async def test_late_progress_never_covers_the_answer(scene: Scene) -> None:
    issue = await scene.github.open_issue("ada", scene.repository, "Broken")
    account, where = scene.account(), f"acme/widgets#{issue.number}"
    progress = Progress(1, 1, "bash", "comment-1")
    shown = await integration.show_progress(where, progress, "", account)
    outgoing = Outgoing("gofer-1-final-1", where, "The answer.", reply_to="comment-1")
    placed = await integration.place(outgoing, account)
    assert placed == shown
    await integration.show_progress(where, progress, shown, account)
    await integration.complete(outgoing, placed, account)
    (reply,) = scene.ours(issue.number)
    assert reply.body.startswith("The answer.")


async def test_a_mark_that_somebody_else_wrote_counts_for_nothing(scene: Scene) -> None:
    issue = await scene.github.open_issue("ada", scene.repository, "Broken")
    await scene.github.comment(
        "mallory", scene.repository, issue.number, "x\n\n<!-- gofer: gofer-1-final-1 -->"
    )
    outgoing = Outgoing("gofer-1-final-1", f"acme/widgets#{issue.number}", "The answer.")
    assert await integration.find(outgoing, scene.account()) is None


@pytest.mark.parametrize(
    ("kind", "error"),
    [("limited", Temporary), ("broken", Temporary), ("missing", Permanent), ("forbidden", Temporary)],
)
async def test_what_github_answers_decides_whether_it_is_tried_again(
    scene: Scene, kind: str, error: type[Exception]
) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken")
    scene.github.faults.append(Fault(kind, "POST /issues/1/comments", 7))  # type: ignore[arg-type]
    with pytest.raises(error) as caught:
        await integration.place(Outgoing("gofer-1-final-1", "acme/widgets#1", "Hello."), scene.account())
    if kind == "limited":
        assert isinstance(caught.value, Temporary)
        assert caught.value.retry_after == 7


async def test_a_token_that_was_revoked_is_minted_anew(scene: Scene) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken")
    account = scene.account()
    await integration.place(Outgoing("gofer-1-final-1", "acme/widgets#1", "Hello."), account)
    scene.github.world.tokens.clear()
    await integration.place(Outgoing("gofer-2-final-1", "acme/widgets#1", "Again."), account)
    assert len(scene.ours(1)) == 2


async def test_a_token_of_no_job_is_ended_when_it_is_used_no_more(scene: Scene) -> None:
    access, account = Access(reuse=0.05), scene.account()
    for minted in (1, 2):
        await access.to(account, "acme/widgets", READ)
        async with patiently(20):
            while scene.github.world.tokens:
                await asyncio.sleep(0.01)
        assert len(scene.github.world.minted) == minted


async def test_an_installation_that_is_gone_ends_in_a_reason(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        scene.github.faults.append(Fault("missing", "GET /widgets/installation"))
        issue = await scene.github.open_issue("ada", scene.repository, "@gofer hello")
        await running.quiet()
        (job,) = await running.jobs(lambda row: row.kind == "answer")
        assert job.state in ("done", "dead")
        (told,) = await running.rows(select(events.c.data).where(events.c.kind == "message.admitted"))
        assert "404 to GET /repos/acme/widgets/installation" in told.data["note"], "its log says why"
    assert scene.ours(issue.number) == []
