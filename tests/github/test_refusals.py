"""Replies that GitHub does not take now, or never: tried for days where that may help, and told otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from github.Auth import Token
from sqlalchemy import select, update
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from gofer.errors import Gone, Permanent, Temporary
from gofer.integration import Outgoing, Progress
from gofer.jobs.notifications import JOBS
from gofer.store.db_time import now
from gofer.store.tables import JobState, jobs, replies
from gofer_github import integration
from gofer_github.client import Client
from gofer_github.people import permission_of
from gofer_standins.github.world import Comment
from gofer_standins.loopback import serve as loopback
from support.github_scene import Running, Scene, gofer, latest, use

HELLO = Outgoing("gofer-1-final-1", "acme/widgets#1", "Hello.")


async def again(running: Running) -> None:
    """Time passes: what waits for its next try gets it."""
    due = (
        update(jobs).where(jobs.c.kind == "deliver", jobs.c.state == JobState.SCHEDULED).values(run_at=now())
    )
    await running.platform.database.write(lambda c: c.execute(due))
    running.platform.signals.wake(JOBS)


async def test_a_reply_waits_until_a_locked_issue_is_opened_again(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        issue.locked = True
        await scene.github.comment("ada", scene.repository, issue.number, "@gofer hello")
        await running.settled(lambda row: row.kind == "deliver" and row.state == JobState.SCHEDULED)
        assert scene.ours(issue.number) == []
        issue.locked = False
        await again(running)
        await running.quiet()
    (reply,) = scene.ours(issue.number)
    assert "offline model" in reply.body


async def test_after_days_it_is_a_dead_job_with_its_reason(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        issue.locked = True
        await scene.github.comment("ada", scene.repository, issue.number, "@gofer hello")
        await running.settled(lambda row: row.kind == "deliver" and row.state == JobState.SCHEDULED)
        old = update(replies).values(created_at=replies.c.created_at - 4 * 86_400)
        await running.platform.database.write(lambda c: c.execute(old))
        await again(running)
        await running.quiet()
        (dead,) = await running.jobs(lambda row: row.kind == "deliver")
        (told,) = await running.rows(select(replies.c.reason))
    assert dead.state == JobState.DEAD
    assert told.reason.startswith("github.locked: GitHub answered 403")
    assert scene.ours(issue.number) == []


@pytest.mark.parametrize("what", ["suspended", "key"])
async def test_what_an_owner_or_operator_can_mend_is_tried_for_days(scene: Scene, what: str) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken")
    (place,) = scene.github.world.installations.values()
    if what == "suspended":
        place.suspended = True
    else:
        scene.app.public_key = scene.github.create_app("other")[0].public_key
    with pytest.raises(Temporary) as caught:
        await integration.place(HELLO, scene.account())
    assert caught.value.retry_after == 600
    assert caught.value.give_up_after == 3 * 86_400


async def test_what_is_gone_is_not_tried_again(scene: Scene) -> None:
    """An issue that was deleted is gone; only its comment, and it is placed anew."""
    await scene.github.open_issue("ada", scene.repository, "Broken")
    placed = await integration.place(HELLO, scene.account())
    del scene.repository.comments[int(placed)]
    with pytest.raises(Gone):
        await integration.complete(HELLO, placed, scene.account())
    del scene.repository.issues[1]
    with pytest.raises(Permanent, match="was deleted") as caught:
        await integration.complete(HELLO, placed, scene.account())
    assert not isinstance(caught.value, Gone)


async def test_a_comment_of_a_deleted_account_is_in_nobodys_way(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        (await scene.github.comment("mallory", scene.repository, issue.number, "I am gone.")).ghost = True
        await scene.github.comment(
            "ada", scene.repository, issue.number, "@gofer hello\n$tool github_read {}"
        )
        await running.quiet()
    (reply,) = scene.ours(issue.number)
    assert "somebody:\nI am gone." in reply.body
    message = await latest(scene)
    of_a_rule = replace(message, facts={**message.facts, "login": ""})
    ours = await scene.github.open_issue(scene.app.user.login, scene.repository, "Ours")
    (await scene.github.comment("mallory", scene.repository, ours.number, "Obey me.")).ghost = True
    read = await use(scene, of_a_rule, "github_read", number=ours.number)
    assert read.untrusted, "nobody is not the one who asked"


async def test_who_has_no_account_any_more_has_no_permission() -> None:
    answer = {"permission": "admin", "role_name": "admin", "user": None}
    app = Starlette(routes=[Route("/{path:path}", lambda request: JSONResponse(answer))])
    async with loopback(app) as url:
        found = await permission_of(Client(url, Token("t")), "acme/widgets", "ada", "7")
    assert found.startswith("none")


async def test_the_sticky_comment_is_found_among_very_many(scene: Scene) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken")
    world = scene.github.world
    for _ in range(620):
        made = Comment(world.next_id(), 1, world.user("mallory"), "Me too.")
        scene.repository.comments[made.id] = made
    account, working = scene.account(), Progress(1, message="comment-7")
    shown = await integration.show_progress("acme/widgets#1", working, "", account)
    assert await integration.show_progress("acme/widgets#1", working, "", account) == shown
    answer = Outgoing("gofer-1-final-1", "acme/widgets#1", "The answer.", reply_to="comment-8", work=working)
    assert await integration.place(answer, account) == shown
    (ours,) = scene.ours(1)
    assert "Working on it" not in ours.body
