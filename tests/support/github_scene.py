"""GitHub's stand-in and a Gofer that is connected to it as an App, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import select

from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection
from gofer.integration import ConnectionContext, Health, Incoming, Request
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import JobState, events, jobs
from gofer.tool import ToolContext, ToolResult
from gofer.vault.redaction import Secret
from gofer.web.app import public_app
from gofer.web.server import make_server
from gofer_github import integration
from gofer_standins.github import GitHubService
from gofer_standins.github.apps import new_key
from gofer_standins.github.world import App, Comment, Repository
from support.patience import eventually
from support.sqlite_template import with_tables

SECRET = "the-webhook-secret-of-the-app"
README = "# Widgets\n"


def request(
    event: str, body: bytes, *, secret: str = SECRET, delivery: str = "d-1", **headers: str
) -> Request:
    """A webhook, rightly signed unless told otherwise."""
    given = {
        "x-github-event": event,
        "x-github-delivery": delivery,
        "x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return Request(body, tuple((name, value.encode("utf-8")) for name, value in given.items()))


def signer(*parts: str) -> str:
    """What signs for a connection that has no store behind it."""
    return hmac.new(b"a key of the tests", repr(parts).encode(), hashlib.sha256).hexdigest()


def account(**settings: Any) -> ConnectionContext:
    """A connection as the integration sees it, without anything behind it."""
    return ConnectionContext("github_1", "test", settings, {"webhook_secret": Secret(SECRET)}, signer=signer)


def tool(name: str, **arguments: Any) -> str:
    """A line that has the offline model call a tool."""
    return f"$tool {name} {json.dumps(arguments)}"


OPEN_PULL = tool(
    "github_open_pull", title="Fix the widget", changed="It says something.", why="It said nothing.",
    tested="Looked at it.", uncertain="Whether it says enough.",
)  # fmt: skip
FIX = "\n".join(
    [
        "@gofer please fix this",
        tool("github_checkout"),
        "$ cd ~/repo && echo fixed >> README.md && git commit -qam 'Fix the widget'",
        "$ cd ~/repo && git push -q origin HEAD 2>&1; echo pushed $?",
        OPEN_PULL,
    ]
)


@dataclass
class Scene:
    """A stand-in with one repository and one App, and how Gofer is connected to it."""

    github: GitHubService
    app: App
    private_key: str
    repository: Repository

    @property
    def settings(self) -> dict[str, Any]:
        """An Enterprise Server's address is all that has to be told of it."""
        apart = {} if self.github.api_url == f"{self.github.url}/api/v3" else {"api_url": self.github.api_url}
        return {
            **apart,
            "web_url": self.github.url,
            "app_id": self.app.id,
            "handle": self.app.slug,
            "login": f"{self.app.slug}[bot]",
        }

    def account(self, **settings: Any) -> ConnectionContext:
        secrets = {"webhook_secret": Secret(self.app.webhook_secret), "private_key": Secret(self.private_key)}
        return ConnectionContext("github_1", "test", {**self.settings, **settings}, secrets, signer=signer)

    def ours(self, number: int) -> list[Comment]:
        """What we wrote on an issue."""
        return [
            one
            for one in self.repository.comments.values()
            if one.number == number and one.user.login == self.app.user.login
        ]


@lru_cache(maxsize=1)
def _key() -> tuple[str, str]:
    """One pair for every scene: making one takes as long as everything else in it."""
    return new_key()


@contextlib.asynccontextmanager
async def open_scene(*, public: bool = False) -> AsyncIterator[Scene]:
    """acme/widgets, where ada may write, olga administers, rita reads and mallory is nobody; on an Enterprise
    Server unless it shall be the public GitHub."""
    async with GitHubService(public=public).open() as github:
        app, key = github.create_app(key=_key())
        people = {"ada": "write", "olga": "admin", "rita": "read"}
        repository = github.create_repository("acme/widgets", {"README.md": README}, **people)
        github.install(app, "acme/widgets")
        yield Scene(github, app, key, repository)


@dataclass
class Running:
    """A Gofer that is connected."""

    platform: Platform
    connection_id: str

    async def quiet(self, patience: float = 40) -> None:
        """Wait until nothing is left to do, but for what goes on for ever or waits for somebody to mend it."""
        live = (JobState.READY, JobState.BLOCKED, JobState.RUNNING, JobState.SCHEDULED)
        lasting = (*(("poll", each) for each in live), ("catch_up", JobState.SCHEDULED))
        query = select(jobs.c.kind, jobs.c.state).where(jobs.c.state.in_(live))

        async def nothing() -> bool:
            return {(row.kind, row.state) for row in await self.rows(query)} <= set(lasting)

        await eventually(nothing, within=patience)

    async def settled(self, which: Callable[[Any], bool], patience: float = 40) -> None:
        """Wait until there is such a job."""
        await eventually(lambda: self.jobs(which), within=patience)

    async def began(self, runs: int = 1) -> None:
        """Wait until so many runs are at a tool."""
        query = select(events.c.id).where(events.c.kind == "tool.started")

        async def enough() -> bool:
            return len(await self.rows(query)) >= runs

        await eventually(enough)

    async def jobs(self, which: Callable[[Any], bool] = lambda row: True) -> list[Any]:
        rows = await self.platform.database.read(lambda c: list(c.execute(select(jobs)).all()))
        return [row for row in rows if which(row)]

    async def health(self) -> Health:
        connected = await self.platform.accounts.get(self.connection_id)
        return await connected.integration.health(connected.account)

    async def rows(self, query: Any) -> list[Any]:
        return list(await self.platform.database.read(lambda c: c.execute(query).all()))


@contextlib.asynccontextmanager
async def gofer(
    scene: Scene,
    data_dir: Path,
    connection_id: str = "",
    *,
    poll_every: float = 15,
    token: str = "",
    workflows: str = "",
    submodules: bool = False,
    repositories: tuple[str, ...] = (),
    **given: Any,
) -> AsyncIterator[Running]:
    """Gofer with web and worker; the App's webhook points to it. With a plain token it is not the App's."""
    settings = {**scene.settings, "poll_every": poll_every, "workflows": workflows, "submodules": submodules}
    settings["repositories"] = list(repositories)
    key = {"private_key": Secret(scene.private_key)}
    if token:
        settings |= {"app_id": None, "login": "ada"}
        key = {"token": Secret(token)}
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "public_url": "http://gofer.test",
        "keep_shells": False,
        "sandbox": "off",
        **given,
    }
    async with open_app(with_tables(Settings(**values)), roles=frozenset({"web", "worker"})) as platform:
        connection_id = connection_id or await platform.database.write(
            partial(
                add_connection,
                vault=platform.vault,
                workspace_id=FIRST_WORKSPACE,
                integration=platform.registry.get("github"),
                name="test",
                settings=settings,
                secrets_given={"webhook_secret": Secret(scene.app.webhook_secret), **key},
                by="test",
            )
        )
        await platform.reload_secrets()
        await platform.database.write(platform.start_inflow)
        server = make_server(public_app(platform), host="127.0.0.1", port=0)
        running = asyncio.create_task(server.serve())
        await server.ready.wait()
        scene.app.hook_url = f"http://127.0.0.1:{server.port}/hooks/{connection_id}"
        try:
            yield Running(platform, connection_id)
        finally:
            scene.app.hook_url = ""
            server.stop()
            await running


async def asked(scene: Scene, body: str, number: int = 1, login: str = "ada") -> Incoming:
    """A request as it comes out of a webhook."""
    await scene.github.comment(login, scene.repository, number, body)
    return await latest(scene)


async def latest(scene: Scene) -> Incoming:
    requests: list[Request] = [one async for one in integration.catch_up(scene.account(), 0)]
    message = integration.parse(requests[-1], scene.account()).message
    assert message is not None
    return message


async def use(
    scene: Scene, message: Incoming, name: str, call: str = "call-1", **arguments: object
) -> ToolResult:
    async with httpx2.AsyncClient() as http:
        account = dataclasses.replace(scene.account(), http=http)
        (found,) = [one for one in integration.tools(account, message) if one.name == name]
        given = found.arguments.model_validate_json(json.dumps(arguments))
        return await found.run(given, ToolContext(call))
