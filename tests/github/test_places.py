"""A conversation goes with its repository, whatever that is called; a name that is used again means another."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select, update

from github_scene import Running, Scene, gofer
from gofer.rehearsal.github.world import Repository
from gofer.store.tables import bindings, connections, conversations, deliveries, events


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
        assert await told(scene, running, other, "eight") not in (first, second, third), (
            "other people write there"
        )
        moved = await running.rows(select(events.c.id).where(events.c.kind == "conversation.moved"))
        assert len(moved) == 3
        assert len(await running.rows(select(conversations.c.id))) == 4


async def refs(running: Running) -> list[str]:
    return sorted(row.ref for row in await running.rows(select(bindings.c.ref)))
