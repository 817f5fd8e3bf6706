"""A plain token instead of an App, and repositories that change under a run or go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from gofer.store.tables import bindings, replies
from gofer_standins.github import Fault, git
from gofer_standins.github.world import Repository
from support.github_scene import FIX, Scene, asked, gofer, tool, use


@pytest.mark.slow
async def test_a_plain_token_does_without_an_app(scene: Scene, tmp_path: Path) -> None:
    world = scene.github.world
    token = world.token(user=world.user("ada")).value
    async with gofer(scene, tmp_path / "data", token=token, sandbox="bubblewrap") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken", FIX)
        await scene.github.comment("mallory", scene.repository, issue.number, "@gofer and me?")
        await running.quiet()
    (reply,) = [one for one in scene.repository.comments.values() if one.user.login == "ada"]
    assert "Opened the draft" in reply.body
    assert "✅ Done in" in reply.body
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    assert (pull.draft, pull.head) == (True, f"gofer/{issue.number}")
    assert scene.repository.check_runs == {}, "only an App may make checks"
    assert world.minted == []
    files = b"".join(one.read_bytes() for one in (tmp_path / "data").rglob("*") if one.is_file())
    assert token.encode() not in files


def _renamed(repository: Repository) -> None:
    git.run(repository.path, "branch", "-m", "main", "trunk")
    repository.default_branch = "trunk"


def _forced(repository: Repository) -> None:
    tree = git.run(repository.path, "rev-parse", "main^{tree}")
    git.run(
        repository.path,
        "update-ref",
        "refs/heads/main",
        git.run(repository.path, "commit-tree", tree, "-m", "x"),
    )


@pytest.mark.slow
async def test_a_base_that_moved_is_worked_on_where_it_is(scene: Scene, tmp_path: Path) -> None:
    """Two at once: one whose default branch is called otherwise, one whose history is another."""
    github, other = (
        scene.github,
        scene.github.create_repository("acme/other", {"README.md": "# O\n"}, ada="write"),
    )
    next(iter(github.world.installations.values())).repositories.add("acme/other")
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        for of in (scene.repository, other):
            await github.open_issue("ada", of, "Broken", f"@gofer\n{tool('github_checkout')}")
        await running.quiet()
        _renamed(scene.repository)
        _forced(other)
        for of in (scene.repository, other):
            await github.comment("ada", of, 1, FIX)
        await running.quiet()
    for of in (scene.repository, other):
        assert "Opened the draft" in list(of.comments.values())[-1].body
        (pull,) = [one for one in of.issues.values() if one.head]
        assert pull.base == of.default_branch


async def test_a_huge_diff_is_cut_and_said_to_be(scene: Scene) -> None:
    """Longer than a model can take, and longer than GitHub itself shows."""
    github, repository = scene.github, scene.repository
    for lines, branch in ((15_000, "big"), (30_000, "huge")):
        text = "\n".join(f"this is line number {number}" for number in range(lines))
        git.commit(repository.path, {f"{branch}.txt": text, "small.txt": branch}, branch, "A change")
        pull = await github.open_pull("ada", repository, branch)
    big = await use(scene, await asked(scene, "@gofer look", pull.number - 1), "github_diff")
    assert big.truncated
    assert "+this is line number 0" in big.content
    assert "characters were left out" in big.more
    huge = await use(scene, await asked(scene, "@gofer look", pull.number), "github_diff")
    assert "too big for GitHub to show" in huge.content
    assert "added huge.txt (+30000 -0)" in huge.content
    assert "--- small.txt\n@@ -0,0 +1 @@\n+huge" in huge.content
    assert huge.untrusted


async def let_go(shells: Path) -> None:
    """Have every command that waits for it go on, also in shells that are only being made."""
    while True:
        for workspace in shells.glob("*/workspace"):
            (workspace / "go").touch()
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_place_that_is_gone_ends_the_reply_with_a_reason(scene: Scene, tmp_path: Path) -> None:
    """Archived, deleted or closed to the App, its issue deleted, the App removed, given to another owner who has the
    App too, or made again under the same name, all while the run works."""
    github, world = scene.github, scene.github.world
    said = {
        "archived": "is archived", "deleted": "was deleted", "removed": "not installed there",
        "issue": "was deleted", "given": "closed to us", "anew": "closed to us",
    }  # fmt: skip
    made = {kind: github.create_repository(f"acme/{kind}", {"a": "a"}, ada="write") for kind in said}
    places = {kind: github.install(scene.app, f"acme/{kind}") for kind in said}
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap") as running:
        github.faults.append(Fault("missing", "POST /reactions"))
        for of in made.values():
            await github.open_issue("ada", of, "Broken", "@gofer\n$ until [ -e go ]; do sleep 0.1; done")
        await running.began(len(said))
        made["archived"].archived = True
        github.delete_repository(made["deleted"])
        del world.installations[places["removed"].id]
        world.tokens = {
            key: one for key, one in world.tokens.items() if one.installation is not places["removed"]
        }
        made["issue"].issues.clear()
        await github.rename_repository("olga", made["given"], "globex/given")
        github.install(scene.app, "globex/given")
        seen = len(made["given"].comments)
        github.delete_repository(made["anew"])
        again = github.create_repository("acme/anew", {"a": "a"}, ada="write")
        places["anew"].repositories.add("acme/anew")
        again.issues[1] = made["anew"].issues[1]
        letting_go = asyncio.create_task(let_go(tmp_path / "data" / "shells"))
        await running.quiet()
        letting_go.cancel()
        ended = await running.rows(
            select(bindings.c.ref, replies.c.state, replies.c.reason).join_from(replies, bindings)
        )
    found = {row.ref.partition("#")[0].removeprefix("acme/"): row for row in ended}
    assert {kind: row.state for kind, row in found.items()} == dict.fromkeys(said, "failed")
    for kind, word in said.items():
        assert word in found[kind].reason, found[kind].reason
    assert len(made["given"].comments) == seen, "nothing more is said to people who asked for nothing"
    assert again.comments == {}
