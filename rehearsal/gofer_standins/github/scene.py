"""The demo's scene on GitHub: an issue becomes a draft pull request whose diff was made in the sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from gofer_standins.github import GitHubService, git
from gofer_standins.instance import Instance

PATIENCE = 60.0
REQUEST = """@gofer please fix this
$tool github_checkout {}
$ cd ~/repo && sed -i 's/helo/hello/' greeting.txt && git commit -qam 'Spell the greeting right'
$ cd ~/repo && git push -q origin HEAD 2>&1
$tool github_open_pull {"title": "Spell the greeting right", "changed": "One letter more.", "why": "It was missing.", \
"tested": "Read it aloud.", "uncertain": "Nothing."}"""


async def issue_to_pull(instance: Instance) -> AsyncIterator[tuple[str, bool, str]]:
    """What happened, whether it was right, and a detail."""
    async with GitHubService().open() as github:
        app, key = github.create_app()
        repository = github.create_repository("acme/greeter", {"greeting.txt": "helo\n"}, ada="write")
        github.install(app, "acme/greeter")
        settings = {"api_url": github.api_url, "web_url": github.url, "app_id": app.id, "handle": app.slug}
        settings["poll_every"] = 0.2
        made = await instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "github",
                "name": "demo",
                "settings": {**settings, "login": app.user.login},
                "secrets": {"private_key": key, "webhook_secret": app.webhook_secret},
            },
        )
        app.hook_url = f"{instance.url}/hooks/{made['connection']['id']}"
        issue = await github.open_issue("mallory", repository, "The greeting is misspelt", "It says helo.")
        await github.comment("ada", repository, issue.number, REQUEST)
        accepted = [one.status_code for one in github.world.deliveries] == [200, 200]
        yield "signed webhooks acknowledged", accepted, "a stranger's issue, and a maintainer's request"
        replies = [one for one in repository.comments.values() if one.user.login == app.user.login]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not any("Opened the draft" in one.body for one in replies):
            await asyncio.sleep(0.05)
            replies = [one for one in repository.comments.values() if one.user.login == app.user.login]
        pulls = [one for one in repository.issues.values() if one.head]
        well = len(replies) == 1 and len(pulls) == 1 and pulls[0].draft
        shown = f"{len(replies)} comment, {len(pulls)} draft pull request"
        yield (
            "one comment, one draft pull request",
            well,
            shown if well else _last(replies[-1].body if replies else ""),
        )
        if pulls:
            diff = git.run(repository.path, "diff", "-U0", f"main...{pulls[0].head}").splitlines()[-2:]
            yield "its diff was made in the sandbox", diff == ["-helo", "+hello"], " ".join(diff)
        dead = not [one for one in github.world.minted if one.permissions.get("contents") == "write" and
                    one.value in github.world.tokens]  # fmt: skip
        # It goes away with this scene; whoever polls it should know.
        await instance.ask("PATCH", f"/connections/{made['connection']['id']}", json={"enabled": False})
        yield "the tokens with which it could write are revoked", dead, ""


def _last(text: str) -> str:
    return text[-300:] or "no comment came"
