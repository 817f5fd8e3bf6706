"""Screenshots in issues and comments reach the model; nothing else is fetched, and no token goes along."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx2

from gofer.integration import Unread
from gofer_github import integration
from gofer_standins.anthropic import Anthropic, say
from gofer_standins.loopback import serve as loopback
from support.github_scene import Scene, asked, gofer

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_screenshots_of_the_request_and_of_its_issue_reach_the_model(
    scene: Scene, tmp_path: Path
) -> None:
    model = Anthropic([say("I see.")])
    github, repository = scene.github, scene.repository
    theirs, ours = github.upload(PNG), github.upload(PNG + b"\0")
    text = github.upload(b"no picture")
    async with loopback(model.app) as url:
        keys: dict[str, Any] = {"anthropic_key": model.key, "anthropic_base_url": url}
        async with gofer(scene, tmp_path / "data", **keys) as running:
            elsewhere = f"{github.api_url}/user"
            body = f"It looks so:\n\n![shot]({theirs})\n\n![spy]({elsewhere})"
            issue = await github.open_issue("mallory", repository, "Broken", body)
            words = f'@gofer here it looks so: <img width="9" src="{ours}">\n\n![a text]({text})'
            await github.comment("ada", repository, issue.number, words)
            await running.quiet()
    content = [block for message in model.received[0]["messages"] for block in message["content"]]
    images = [block["source"]["data"] for block in content if block["type"] == "image"]
    assert images == [base64.b64encode(PNG + b"\0").decode(), base64.b64encode(PNG).decode()]
    told = json.dumps(content)
    assert (
        "picture-1.png is of the request; picture-2.png is of what the request is about; 1 more could" in told
    )
    assert not [path for _, path, _ in github.calls if path == "/user"], "only uploads are asked for"


async def test_pictures_of_a_text_that_was_changed_since_are_not_used(scene: Scene) -> None:
    first, other = scene.github.upload(PNG), scene.github.upload(PNG + b"\0")
    issue = await scene.github.open_issue("ada", scene.repository, "Broken", f"![a]({first})")
    message = await asked(scene, "@gofer look", issue.number)
    async with httpx2.AsyncClient() as http:
        account = dataclasses.replace(scene.account(), http=http)
        found = await integration.admit(Unread(message, None), account)
        assert [file.content for file in found.files] == [PNG]
        issue.body = f"![b]({other})"
        assert (await integration.admit(Unread(message, None), account)).files == ()
