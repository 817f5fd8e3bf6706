"""A conversation goes with its repository, whatever that is called; a name that is used again means another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select, update

from gofer.store.tables import bindings, connections, conversations, deliveries, events, replies
from gofer_standins.github import git
from gofer_standins.github.world import Repository
from support.github_scene import FIX, Running, Scene, gofer


def made_again(scene: Scene, full_name: str) -> Repository:
    """Another repository, under a name that is free."""
    made = scene.github.create_repository(full_name, {"README.md": "# Anew\n"}, ada="write")
    (place,) = scene.github.world.installations.values()
    place.repositories.add(full_name)
    return made


async def told(scene: Scene, running: Running, repository: Repository, text: str) -> str:
    """Which conversation it became part of. It was answered there."""
    if not repository.issues:
        await scene.github.open_issue("ada", repository, "It is broken")
    before = len(repository.comments)
    await scene.github.comment("ada", repository, 1, f"@gofer {text}")
    await running.quiet()
    assert len(repository.comments) == before + 2, "said and answered"
    (newest,) = await running.rows(
        select(deliveries.c.conversation_id).order_by(deliveries.c.id.desc()).limit(1)
    )
    return str(newest.conversation_id)


@pytest.mark.slow
async def test_a_conversation_follows_its_repository_and_not_its_name(scene: Scene, tmp_path: Path) -> None:
    github, ours = scene.github, scene.repository
    listed = ("acme/widgets", "acme/*", "globex/*")
    async with gofer(scene, tmp_path / "data", repositories=listed) as running:
        first = await told(scene, running, ours, "one")
        # As everybody has it who spoke with us before places were known by more than their name.
        await running.platform.database.write(lambda c: c.execute(update(bindings).values(lasting=None)))
        assert await told(scene, running, ours, "two") == first

        await github.rename_repository("olga", ours, "acme/things")
        await running.quiet()
        assert await refs(running) == ["acme/things#1"], "before anything is said there"
        scene.app.events.remove("repository")
        await github.rename_repository("olga", ours, "acme/gizmos")
        assert await told(scene, running, ours, "three") == first
        assert await refs(running) == ["acme/gizmos#1"]
        (connected,) = await running.rows(select(connections.c.settings))
        assert connected.settings["repositories"] == ["acme/things", *listed[1:]]

        other = made_again(scene, "acme/widgets")
        second = await told(scene, running, other, "four")
        assert second != first
        await github._redeliver(scene.app, github.world.deliveries[1])
        await running.quiet()
        assert await refs(running) == ["acme/gizmos#1", "acme/widgets#1"], "a repeat changes nothing"
        assert await told(scene, running, ours, "five") == first

        del github.world.repositories["acme/gizmos"]
        third = await told(scene, running, made_again(scene, "acme/gizmos"), "six")
        assert third not in (first, second)
        assert await refs(running) == [
            "acme/gizmos#1", f"acme/gizmos#1 (was {other.owner}/{ours.id}#1)", "acme/widgets#1",
        ]  # fmt: skip

        assert await told(scene, running, other, "seven") == second
        await github.rename_repository("olga", other, "globex/widgets")
        github.install(scene.app, "globex/widgets")
        assert await told(scene, running, other, "eight") not in (first, second, third), (
            "other people write there"
        )
        moved = await running.rows(select(events.c.id).where(events.c.kind == "conversation.moved"))
        assert len(moved) == 3
        assert len(await running.rows(select(conversations.c.id))) == 4


async def refs(running: Running) -> list[str]:
    return sorted(row.ref for row in await running.rows(select(bindings.c.ref)))


@pytest.mark.slow
async def test_a_rename_in_the_middle_of_a_run_is_followed(scene: Scene, tmp_path: Path) -> None:
    """Twice: before the repository is cloned, and between the clone and the push. The second time nobody tells us."""
    github, ours = scene.github, scene.repository
    git.commit(ours.path, {"other.txt": "other"}, "other", "Another change")
    other = await github.open_pull("ada", ours, "other", "Somebody else's")
    wait = "$ until [ -e ~/{} ]; do sleep 0.05; done"
    lines = FIX.split("\n")
    asked = [lines[0], wait.format("one"), *lines[1:3], wait.format("two"), *lines[3:]]
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        issue = await github.open_issue("ada", ours, "It is broken", "\n".join(asked))
        await running.began()
        await github.rename_repository("olga", ours, "acme/things")
        await go_on(running, tmp_path, "one", 4)
        scene.app.events.remove("repository")
        await github.rename_repository("olga", ours, "acme/gizmos")
        await go_on(running, tmp_path, "two", 6)
        await running.quiet()
        (ended,) = await running.rows(select(replies.c.state))
        await github.comment("ada", ours, issue.number, FIX)
        await running.quiet()
    reply, again = scene.ours(issue.number)
    assert "pushed 0" in again.body, "the clone goes on under the new name"
    assert "pushed 0" in reply.body
    assert "Opened the draft" in reply.body
    assert "✅ Done in" in reply.body
    assert ended.state == "sent"
    assert other.title == "Somebody else's", "the way to where it is now keeps what was asked"
    (pull,) = [one for one in ours.issues.values() if one.head == f"gofer/{issue.number}"]
    assert pull.draft


async def go_on(running: Running, tmp_path: Path, name: str, runs: int) -> None:
    """Let the command that waits for a file go on, in a shell that may only be being made, to a later one."""
    beginning = asyncio.create_task(running.began(runs))
    while not beginning.done():
        for workspace in (tmp_path / "data" / "shells").glob("*/workspace"):
            (workspace / name).touch()
        await asyncio.sleep(0.05)
    await beginning
