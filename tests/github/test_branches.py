"""A second run on the same branch: it goes on from what is at GitHub now, and loses nothing that was done here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gofer_standins.github import git
from support.github_scene import FIX, Running, Scene, gofer, tool

SHELL: dict[str, Any] = {"sandbox": "bubblewrap"}
PUSH = "$ cd ~/repo && git push -q origin HEAD 2>&1; echo pushed $?"


async def ask(scene: Scene, running: Running, *lines: str, number: int = 1) -> str:
    """What is answered to a request on an issue, which is opened with the first."""
    words = "\n".join(["@gofer please", *lines])
    if number not in scene.repository.issues:
        await scene.github.open_issue("ada", scene.repository, "Broken", words)
    else:
        await scene.github.comment("ada", scene.repository, number, words)
    await running.quiet()
    return scene.ours(number)[-1].body


def commit(text: str, name: str = "more.txt") -> str:
    return f"$ cd ~/repo && echo {text} >> {name} && git add -A && git commit -qm 'Add {text}'"


@pytest.mark.slow
async def test_a_persons_push_is_there_in_the_next_run(scene: Scene, tmp_path: Path) -> None:
    """Fast-forwarded when nothing was left unpushed, rebased when something was; what was not even committed stays."""
    repository = scene.repository
    async with gofer(scene, tmp_path / "data", **SHELL) as running:
        assert "pushed 0" in await ask(scene, running, *FIX.split("\n")[1:])
        git.commit(repository.path, {"theirs.txt": "theirs"}, "gofer/1", "By a person")
        said = await ask(scene, running, tool("github_checkout"), commit("ours"), PUSH)
        assert "Fast-forwarded gofer/1: 1 commits came from gofer/1 at GitHub." in said, said
        assert "pushed 0" in said, said

        await ask(scene, running, commit("unpushed"), "$ cd ~/repo && echo dirty > dirty.txt")
        git.commit(repository.path, {"again.txt": "again"}, "gofer/1", "By a person again")
        said = await ask(scene, running, tool("github_checkout"), "$ cd ~/repo && cat dirty.txt", PUSH)
        assert "Rebased 1 commits that were not pushed onto gofer/1 at GitHub." in said, said
        assert "dirty\n" in said
        assert "pushed 0" in said, said
    subjects = git.run(repository.path, "log", "--format=%s", "gofer/1").split("\n")
    assert subjects[:4] == ["Add unpushed", "By a person again", "Add ours", "By a person"]


@pytest.mark.slow
async def test_commits_that_do_not_fit_are_put_aside_and_a_rewritten_branch_is_taken_over(
    scene: Scene, tmp_path: Path
) -> None:
    repository = scene.repository
    async with gofer(scene, tmp_path / "data", **SHELL) as running:
        await ask(scene, running, *FIX.split("\n")[1:])
        git.rewrite(repository.path, {"README.md": "rewritten\n"}, "gofer/1", "Rewritten by a person")
        said = await ask(scene, running, tool("github_checkout"), "$ cd ~/repo && cat README.md", commit("a"))
        assert "gofer/1 was rewritten at GitHub; it was taken over as it is there." in said, said
        assert "rewritten\n" in said
        await ask(scene, running, commit("ours", "README.md"))
        git.commit(repository.path, {"README.md": "theirs\n"}, "gofer/1", "By a person")
        said = await ask(
            scene, running, tool("github_checkout"), "$ cd ~/repo && cat README.md && git branch", PUSH
        )
        assert "conflict with gofer/1 at GitHub: they are on the local branch kept-" in said, said
        assert "theirs\n" in said
        assert "pushed 0" in said, said
    assert git.run(repository.path, "log", "-1", "--format=%s", "gofer/1") == "By a person"


@pytest.mark.slow
@pytest.mark.parametrize(("squash", "keep"), [(True, True), (False, False)])
async def test_after_a_merge_the_work_begins_anew(
    scene: Scene, tmp_path: Path, squash: bool, keep: bool
) -> None:
    repository = scene.repository
    async with gofer(scene, tmp_path / "data", **SHELL) as running:
        await ask(scene, running, *FIX.split("\n")[1:])
        await scene.github.merge("olga", repository, 2, squash=squash, keep=keep)
        git.commit(repository.path, {"later.txt": "later"}, "main", "Later")
        said = await ask(
            scene, running, tool("github_checkout"), "$ cd ~/repo && cat later.txt", commit("second"), PUSH,
            FIX.split("\n")[-1],
        )  # fmt: skip
        assert "gofer/1 was merged (#2), so the work begins anew from main." in said, said
        assert "later\n" in said
        assert "Opened the draft" in said, said
    (pull,) = [one for one in repository.issues.values() if one.head and not one.merged_at]
    assert pull.head == "gofer/1-2"
    assert git.run(repository.path, "log", "--format=%s", f"main..{pull.head}") == "Add second"
    assert git.run(repository.path, "merge-base", "main", pull.head) == git.sha_of(repository, "main")
