"""GitHub, as the contract suite tries it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.case import Case
from gofer.integration import ConnectionContext, Request
from gofer_github import integration
from support.github_scene import Scene, account, open_scene, request

FIXTURES = Path(__file__).parent / "fixtures"


def mention() -> Request:
    payload = json.loads((FIXTURES / "issue_comment__created.json").read_bytes())
    payload["comment"]["body"] = "@gofer please fix this"
    return request("issue_comment", json.dumps(payload).encode())


@dataclass
class Served:
    account: ConnectionContext
    scene: Scene
    conversation: str = "acme/widgets#1"

    def texts(self) -> list[str]:
        return [one.body.partition("\n\n<!-- gofer:")[0] for one in self.scene.ours(1)]


@asynccontextmanager
async def serve() -> AsyncIterator[Served]:
    async with open_scene() as scene:
        await scene.github.open_issue("ada", scene.repository, "It is broken")
        yield Served(scene.account(), scene)


CASE = Case(
    integration=integration,
    account=account(),
    message=mention,
    ignored=lambda: request("ping", (FIXTURES / "ping.json").read_bytes()),
    serve=serve,
    finds=True,
)
