"""Clones begin from what is kept of a repository: less is fetched, nothing is shown that could not be fetched, and
whatever is wrong with it, a clone works."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from gofer.connections.health import disconnect
from gofer.purge import purge_conversation
from gofer.runs.shell_access import Mirrors
from gofer.store.tables import conversations
from gofer_github.repository_access import named_in
from gofer_sandbox import Bubblewrap
from gofer_standins.github import git
from gofer_standins.github.world import Repository
from support.github_scene import Running, Scene, gofer, tool

BIG = random.Random(7).randbytes(300_000).hex()


async def cloned(scene: Scene, running: Running, *commands: str) -> str:
    """What a new conversation answers that checks the repository out."""
    lines = ["@gofer", tool("github_checkout"), *(f"$ cd ~/repo && {one}" for one in commands)]
    issue = await scene.github.open_issue("ada", scene.repository, "Look", "\n".join(lines))
    await running.quiet()
    (reply,) = scene.ours(issue.number)
    assert "Cloned into repo" in reply.body, reply.body
    return reply.body


def packs(data: Path) -> list[Path]:
    return list(data.glob("mirrors/*/*/workspace/mirror.git/objects/pack/*.pack"))


@pytest.mark.slow
async def test_a_repository_is_fetched_once_and_kept_as_it_is_now(scene: Scene, tmp_path: Path) -> None:
    data, repository = tmp_path / "data", scene.repository
    secret = git.commit(repository.path, {"big.txt": BIG}, "main", "Big, and with a secret")
    async with gofer(scene, data, sandbox="bubblewrap") as running:
        await cloned(scene, running)
        (pack,) = packs(data)
        fetched, repository.sent = repository.sent, 0
        git.commit(repository.path, {"new.txt": "new"}, "main", "New")
        said = await cloned(scene, running, "cat new.txt; wc -c big.txt; git log --oneline | wc -l")
        assert "new" in said
        assert "600000 big.txt" in said
        assert fetched > 300_000 > 10 * repository.sent, "only what is new was fetched"

        # The history is rewritten without the secret, and what is kept is damaged.
        git.run(
            repository.path, "update-ref", "refs/heads/main", git.run(repository.path, "rev-parse", "main~2")
        )
        (pack,) = packs(data)
        pack.chmod(0o600)
        pack.write_bytes(pack.read_bytes()[:-4000] + bytes(4000))
        said = await cloned(scene, running, f"git cat-file -t {secret} 2>&1; ls")
        assert "could not get object info" in said, "what nobody can reach any more is not handed on"
        git.commit(repository.path, {"more.txt": "more"}, "main", "More")
        assert "more.txt" in await cloned(scene, running, f"git cat-file -t {secret} 2>&1; ls")

        scene.repository = replaced(scene)
        said = await cloned(scene, running, "ls; git log --format=%s --all")
        assert "other.txt" in said
        assert "More" not in said, "another repository by the same name is another"
        assert len(packs(data)) == 2
        await removed(running)
        assert not list((data / "mirrors").glob("*/*"))


def replaced(scene: Scene) -> Repository:
    """The repository is deleted, and somebody makes another by its name."""
    scene.github.world.repositories.pop("acme/widgets")
    made = scene.github.create_repository("acme/widgets", {"other.txt": "other"}, ada="write")
    made.issues = {number: one for number, one in scene.repository.issues.items() if number < 100}
    return made


async def removed(running: Running) -> None:
    """The connection goes, with everything that was said over it."""
    platform = running.platform
    for row in await running.rows(select(conversations.c.id)):
        purge = partial(purge_conversation, vault=platform.vault, conversation_id=row.id, by="test")
        await platform.database.write(purge)
    await disconnect(platform, running.connection_id, by="test")


@pytest.mark.slow
async def test_submodules_come_along_where_they_are_allowed_and_may_be_read(
    scene: Scene, tmp_path: Path
) -> None:
    """One that ada may read, and one that she may not."""
    github, main = scene.github, scene.repository
    ours = {"acme/lib": "write", "acme/secret": "none"}
    for name, permission in ours.items():
        other = github.create_repository(name, {"plan.txt": f"the plan of {name}"}, ada=permission)
        git.add_submodule(
            main.path, "main", name.partition("/")[2], f"../{name.partition('/')[2]}.git", other.path
        )
        git.commit(other.path, {"plan.txt": "a later plan"}, "main", "After what the submodule is pinned to")
    next(iter(github.world.installations.values())).repositories |= {*ours}
    async with gofer(scene, tmp_path / "data", sandbox="bubblewrap", submodules=True) as running:
        said = await cloned(scene, running, "cat */plan.txt; cd lib && git push -q origin HEAD:gofer/1 2>&1")
    assert "the plan of acme/lib" in said
    assert "the plan of acme/secret" not in said
    assert "The submodule secret could not be fetched." in said
    assert "may not push" in said
    minted = [one for one in github.world.minted if "contents" in one.permissions]
    assert not [one for one in minted if "acme/secret" in one.repositories]
    (reading,) = [one for one in minted if one.repositories == {"acme/lib"}]
    assert reading.permissions["contents"] == "read"
    assert reading.value not in github.world.tokens, "it dies with the job"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("../lib.git", ["acme/lib"]),
        ("https://github.com/acme/lib", ["acme/lib"]),
        ("git@github.com:acme/lib.git", ["acme/lib"]),
        ("ssh://git@github.com/acme/lib.git", ["acme/lib"]),
        ("https://github.com/other/lib.git", []),
        ("../../other/lib.git", []),
        ("../../../../etc/passwd", []),
        ("https://github.com.evil.test/acme/lib.git", []),
        ("https://evil.test/acme/lib.git", []),
        ("file:///acme/lib", []),
        ("../widgets.git", []),
        ("../..", []),
    ],
)
def test_submodules_are_of_the_same_owner_on_the_same_server(url: str, name: list[str]) -> None:
    text = f'[submodule "x"]\n\tpath = x\n\turl = {url}\n'
    assert named_in(text, "acme/widgets", "https://github.com") == name


async def test_what_is_kept_is_bounded_and_goes_with_its_connection(tmp_path: Path) -> None:
    mirrors = Mirrors(tmp_path, Bubblewrap())
    places = [tmp_path / connection / name for connection in ("github_1", "github_2") for name in "ab"]
    for age, place in enumerate(places):
        (place / "workspace").mkdir(parents=True)
        (place / "workspace" / "pack").write_bytes(bytes(1_000_000))
        (place / "live").write_bytes(b"")
        os.utime(place / "live", (2_000_000_000 - age, 2_000_000_000 - age))
    mirrors._keep_within(2_500_000)
    assert [place.exists() for place in places] == [True, True, False, False], "the longest unused go first"
    os.utime(places[1] / "live", (0, 0))
    await mirrors.tidy({"github_1"})
    assert [place.exists() for place in places] == [True, False, False, False]
    await mirrors.tidy(())
    assert not places[0].exists()
