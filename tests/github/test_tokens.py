"""A run's tokens are minted for it, reach one repository, and end with it; nobody else has them."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from gofer.errors import Permanent
from gofer.integration import ConnectionContext, JobScope
from gofer.runs.shell_access import Loans
from gofer_github.access import READ, WRITE, Access
from gofer_standins.github import Fault
from gofer_standins.github.world import Repository, Token
from support.github_scene import Running, Scene, gofer, tool
from support.patience import patiently

SEARCH = tool("github_search", query="broken")
WORK = "\n".join(
    [
        "@gofer",
        tool("github_read"),
        tool("github_file", path="README.md"),
        tool("github_label", labels=["seen"]),
        tool("github_comment", number=1, body="See the other one."),
        SEARCH,
    ]
)
BY_TOOLS = (
    "GET /search/issues",
    "GET {}/contents/README.md",
    "POST {}/issues/2/labels",
    "POST {}/issues/1/comments",
)
"""What only the tools of these runs ask; Gofer itself reacts to and answers #2."""

SET_UP = {"GET /installation/repositories", "DELETE /installation/token"}
"""The only thing for which a token reaches more than one repository."""


def by_tools(scene: Scene, repository: Repository) -> list[Token]:
    """The tokens with which the tools of a repository's runs worked."""
    asked = {one.format(f"/repos/{repository.full_name}") for one in BY_TOOLS}
    here = {repository.full_name}
    return [one for one in scene.github.world.minted if one.repositories == here and asked & {*one.calls}]


def second_repository(scene: Scene) -> Repository:
    made = scene.github.create_repository("acme/gadgets", {"README.md": "# Gadgets\n"}, ada="write")
    next(iter(scene.github.world.installations.values())).repositories.add("acme/gadgets")
    return made


async def ask(scene: Scene, running: Running, *repositories: Repository) -> None:
    for one in repositories:
        await scene.github.open_issue("ada", one, "Broken")
        await scene.github.open_issue("ada", one, "Broken, too", WORK)
    await running.quiet()


async def test_what_a_runs_tools_use_ends_with_it_and_is_nobody_elses(scene: Scene, tmp_path: Path) -> None:
    """Two runs at once in two repositories, another one after them, and one that is stopped at its work."""
    github, here, there = scene.github, scene.repository, second_repository(scene)
    async with gofer(scene, tmp_path / "data", stop_within=0) as running:
        await ask(scene, running, here, there)
        for one in (here, there):
            assert list(one.issues[2].labels) == ["seen"]
            assert "See the other one." in next(c.body for c in one.comments.values() if c.number == 1)
            ours = by_tools(scene, one)
            # The search shares what reading has; each of the two writes could do no more than write.
            assert sorted(token.permissions.get("issues", "") for token in ours) == ["read", "write"]
            assert not [token for token in ours if token.value in github.world.tokens]
        of_tools = {token.value for one in (here, there) for token in by_tools(scene, one)}
        wide = [one for one in github.world.minted if len(one.repositories) != 1]
        assert {call for one in wide for call in one.calls} <= SET_UP
        beside = [one for one in github.world.minted if any("/reactions" in call for call in one.calls)]
        assert len(beside) == 2
        assert not [one for one in beside if one.value in of_tools]

        before = len(by_tools(scene, here))
        await github.comment("ada", here, 2, f"@gofer again\n{SEARCH}")
        await running.quiet()
        assert len(by_tools(scene, here)) == before + 1, "the next run has its own"

        minted = len(github.world.minted)
        github.faults.append(Fault("stalled", "GET /search/issues", 2))
        await github.comment("ada", here, 2, f"@gofer and again\n{SEARCH}")
        async with patiently(30):
            while github.faults:
                await asyncio.sleep(0.02)
    (stopped,) = (one for one in by_tools(scene, here) if one in github.world.minted[minted:])
    assert stopped.value not in github.world.tokens, "although it had not been answered yet"


async def test_a_token_is_one_jobs_for_one_repository(
    scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    second_repository(scene)
    github, access, account = scene.github, Access(), scene.account()
    one, other = (dataclasses.replace(account, job=JobScope()) for _ in range(2))
    client = await access.to(one, "acme/widgets", READ)
    with pytest.raises(Permanent, match="404"):
        await client.get("/repos/acme/gadgets")
    with pytest.raises(Permanent, match="403"):
        await client.post("/repos/acme/widgets/issues", {"title": "Mine"})
    first = await access.token(one, "acme/widgets", READ)
    assert first == await access.token(one, "acme/Widgets", READ), "its calls share it"
    others = [
        await access.token(one, "acme/widgets", WRITE), await access.token(one, "acme/gadgets", READ),
        await access.token(other, "acme/widgets", READ), await access.token(account, "acme/widgets", READ),
    ]  # fmt: skip
    assert len({first, *others}) == 5
    await ended(one)
    assert {*github.world.tokens} == {*others[2:]}
    with pytest.raises(Permanent, match="over"):
        await access.to(one, "acme/widgets", READ)
    github.faults.append(Fault("broken", "DELETE /installation/token"))
    await ended(other)  # without an error: it would cost somebody their answer
    assert "job.cleanup_failed" in "".join(capfd.readouterr())


async def ended(account: ConnectionContext) -> None:
    assert account.job is not None
    await account.job.end()


async def test_a_token_that_is_being_minted_when_the_run_is_stopped_ends_too(scene: Scene) -> None:
    github, access, lending = scene.github, Access(), Loans()
    github.faults.append(Fault("stalled", "POST /access_tokens", 0.3))

    async def run() -> None:
        async with lending.job() as job:
            await access.to(dataclasses.replace(scene.account(), job=job), "acme/widgets", READ)

    running = asyncio.create_task(run())
    async with patiently(30):
        while github.faults:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert github.world.minted == []
    await lending.close()
    assert len(github.world.minted) == 1
    assert not github.world.tokens
