"""The core path against a GitHub that somebody else wrote: npm emulate, which enforces an App's permissions.

It speaks no git, so the branch that a push would have made is made through its API.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from benchmarks.node_peers import NODE, NotInstalled, install

from e2e.process import free_port
from gofer_standins.github import EVENTS, PERMISSIONS, GitHubService
from gofer_standins.github.apps import new_key
from gofer_standins.github.world import App, Repository
from support.github_scene import OPEN_PULL, SECRET, Scene, gofer, tool
from support.patience import patience, patiently

pytestmark = pytest.mark.peer
REPO = "/repos/ada/widgets"


@dataclass
class Emulated(Scene):
    """How Gofer is connected to it."""

    port: int = field(default_factory=free_port)

    @property
    def settings(self) -> dict[str, Any]:
        address = f"http://localhost:{self.port}"
        known = {"app_id": 12345, "handle": "gofer", "login": "gofer[bot]"}
        return {"api_url": address, "web_url": address, **known}


def emulated(folder: Path) -> Emulated:
    private, public = new_key()
    app = App(12345, "gofer", public, SECRET)
    return Emulated(GitHubService(), app, private, Repository(1, "ada/widgets", folder))


@contextlib.asynccontextmanager
async def emulate(scene: Emulated) -> AsyncIterator[httpx2.AsyncClient]:
    """It listens; ada's client."""
    try:
        place = await asyncio.to_thread(install)
    except NotInstalled as error:
        pytest.skip(str(error))
    given = {
        "port": scene.port, "hook": scene.app.hook_url, "secret": SECRET, "key": scene.private_key,
        "permissions": PERMISSIONS, "events": EVENTS,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(Path(__file__).parent / "emulate.mjs"), str(place), json.dumps(given),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        headers = {"authorization": "Bearer adas-own-token"}
        address = f"http://localhost:{scene.port}"
        async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=patience(20)) as ada:
            yield ada
    finally:
        process.stdin.close()
        await process.wait()


async def ask(client: httpx2.AsyncClient, method: str, path: str, **given: Any) -> Any:
    answer = await client.request(method, path, **given)
    assert answer.is_success, answer.text
    return answer.json()


async def push(ada: httpx2.AsyncClient, branch: str) -> None:
    main = await ask(ada, "GET", f"{REPO}/git/ref/heads/main")
    new = {"ref": f"refs/heads/{branch}", "sha": main["object"]["sha"]}
    await ask(ada, "POST", f"{REPO}/git/refs", json=new)
    file = {"message": "Fix", "content": base64.b64encode(b"fixed").decode(), "branch": branch}
    await ask(ada, "PUT", f"{REPO}/contents/fix.txt", json=file)


async def test_an_issue_becomes_a_draft_pull_request_with_one_comment_and_a_check(tmp_path: Path) -> None:
    scene = emulated(tmp_path)
    wish = [
        "@gofer please fix this",
        tool("github_read"),
        OPEN_PULL,
    ]
    async with gofer(scene, tmp_path / "data") as running, emulate(scene) as ada:
        await push(ada, "gofer/1")
        await ask(ada, "POST", f"{REPO}/issues", json={"title": "Broken", "body": "\n".join(wish)})
        async with patiently(30):
            while not await running.jobs(lambda row: row.kind == "deliver"):
                await asyncio.sleep(0.05)
        await running.quiet()
        health = await running.health()
        comments = await ask(ada, "GET", f"{REPO}/issues/1/comments")
        (pull,) = await ask(ada, "GET", f"{REPO}/pulls")
        checks = await ask(ada, "GET", f"{REPO}/commits/{pull['head']['sha']}/check-runs")
    assert health.ok, health.line
    (comment,) = comments
    assert comment["user"]["login"] == "gofer[bot]"
    assert "Opened the draft" in comment["body"]
    assert "✅ Done in" in comment["body"]
    assert (pull["draft"], pull["head"]["ref"], pull["user"]["login"]) == (True, "gofer/1", "gofer[bot]")
    assert "Fixes #1" in pull["body"]
    assert [(run["name"], run["status"]) for run in checks["check_runs"]] == [("Gofer", "completed")]
