"""An owner who asked on an issue for a change of Gofer approves the release there, by a comment."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from gofer.identity import grant_role
from gofer.jobs.kinds import RELEASE_BUILD
from gofer.jobs.notifications import JOBS
from gofer.jobs.queue import submit
from gofer.releases.approval import ask_about_waiting
from gofer.releases.lifecycle import open_home
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.locks import lock_conversation
from gofer.store.tables import JobState, bindings, jobs
from gofer_supervisor.home import Home, Release
from support.github_scene import Running, Scene, gofer

DIFF = """diff --git a/platform/gofer/variant.py b/platform/gofer/variant.py
--- a/platform/gofer/variant.py
+++ b/platform/gofer/variant.py
@@ -1 +1 @@
-VARIANT = 1
+VARIANT = 2
"""


def built(connection: Connection) -> int:
    """A job that has built a change, in the conversation of the issue."""
    place = connection.execute(select(bindings)).one()
    lock_conversation(connection, place.conversation_id)
    made = submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=RELEASE_BUILD,
        lane=RELEASE_BUILD,
        conversation_id=place.conversation_id,
        connection_id=place.connection_id,
    )
    connection.execute(jobs.update().where(jobs.c.id == made).values(state=JobState.DONE))
    return int(made or 0)


async def asked(scene: Scene, running: Running, number: int) -> tuple[Home, str]:
    """Olga is an owner, and is asked on an issue about a change that she wanted there; the id of the question."""
    platform = running.platform
    home = open_home(platform.settings)
    home.prepare()
    change = {"diff": DIFF, "summary": "Vary.", "agent": "gofer", "by": "olga"}
    mark = str(await platform.database.write(built))
    release = Release(build="2.0-abc", version="2.0", python=sys.executable)
    home.add(release, source="change", change={**change, "mark": mark}, checked="all is well", staged_at=1.0)
    olga = scene.github.world.users["olga"]
    owner = partial(
        grant_role,
        workspace_id=FIRST_WORKSPACE,
        integration="github",
        subject=str(olga.id),
        name="olga",
        role="owner",
        by="test",
    )
    await platform.database.write(owner)
    await platform.database.write(ask_about_waiting, vault=platform.vault, home=home)
    platform.signals.wake(JOBS)
    await running.quiet()
    question = scene.ours(number)[-1].body
    assert "+VARIANT = 2" in question
    (id_,) = set(re.findall(r"`/gofer answer (q_\w+) Approve`", question))
    assert f"`/gofer answer {id_} Decline`" in question
    return home, str(id_)


@pytest.mark.parametrize("word", ["approve", "Decline"])
async def test_an_owner_answers_by_a_comment_and_nobody_else_can(
    scene: Scene, tmp_path: Path, word: str
) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("olga", scene.repository, "Vary")

        async def comment(login: str, text: str) -> str:
            await scene.github.comment(login, scene.repository, issue.number, text)
            await running.quiet()
            return scene.ours(issue.number)[-1].body

        await comment("olga", "@gofer hello")
        home, question = await asked(scene, running, issue.number)
        before = len(scene.ours(issue.number))
        await comment("mallory", f"/gofer answer {question} Approve")
        assert len(scene.ours(issue.number)) == before, "a stranger is not answered"
        assert "not for you" in await comment("ada", f"/gofer answer {question} Approve")
        assert "Answer with one of: Approve, Decline." in await comment(
            "olga", f"/gofer answer {question} sure"
        )
        assert "no such question" in await comment("olga", "/gofer answer q_invented Approve")
        assert home.asked() is None
        assert f"Noted: {word}" in await comment("olga", f"/gofer answer {question} {word}")
        assert "too late" in await comment("olga", f"/gofer answer {question} Approve")
        manifest = home.manifest("2.0-abc")
        if word == "approve":
            assert (home.asked() or {})["build"] == "2.0-abc"
            assert manifest["approved_by"] == "olga"
        else:
            assert home.asked() is None
            assert manifest["declined_by"] == "olga"
