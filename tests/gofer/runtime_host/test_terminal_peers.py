"""Codex, Gemini CLI and opencode in a pane, offline: each is idle at its empty input, a draft is left alone, and what
it is told reaches its model, which is a stand-in on loopback that only listens."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from benchmarks.node_peers import NODE, ROOT, NotInstalled, install
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gofer.runtime_host.configuration import TmuxSettings
from gofer.runtime_host.tmux import TmuxAdapter
from gofer_standins.loopback import serve
from support.patience import eventually
from support.terminals import Terminals, needs_tmux, terminals

from .order_runs import carry_out

pytestmark = [pytest.mark.peer, needs_tmux]

ASKED = "Ada asks what is left of the cake in the kitchen today.\nSecond line: ; $(x) `y`"
CODEX = """
model = "stand-in"
model_provider = "local"
check_for_update_on_startup = false
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
[projects."{project}"]
trust_level = "trusted"
"""
GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
}


class Listener:
    """Takes every request and answers none."""

    def __init__(self) -> None:
        self.heard = ""

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._take, methods=["GET", "POST", "HEAD"])])

    async def _take(self, request: Request) -> Response:
        self.heard += (await request.body()).decode("utf-8", "replace")
        return JSONResponse({"error": {"message": "It only listens.", "code": 400}}, 400)


@pytest.fixture(scope="module")
def packages() -> Path:
    try:
        return install(
            ROOT / "benchmarks" / "node" / "terminals" / "package.json", ROOT / ".bench" / "terminals"
        )
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


@pytest.fixture
async def listener() -> AsyncIterator[tuple[Listener, str]]:
    made = Listener()
    async with serve(made.app) as url:
        yield made, url


def _settle(home: Path, project: Path, url: str) -> None:
    """What each agent needs in order to start without an account and without questions."""
    for folder in (home / ".codex", home / ".gemini", home / ".config" / "opencode", project):
        folder.mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(CODEX.format(url=url, project=project))
    (home / ".gemini" / "settings.json").write_text(json.dumps(GEMINI))
    model = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {"stand-in": {"name": "stand-in"}},
    }
    opencode = {"autoupdate": False, "model": "local/stand-in", "provider": {"local": model}}
    (home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(opencode))


@pytest.mark.parametrize("program", ["codex", "gemini", "opencode"])
async def test_it_is_idle_keeps_a_draft_and_gets_what_it_is_told(
    program: str, packages: Path, desk: Terminals, listener: tuple[Listener, str], tmp_path: Path
) -> None:
    heard, url = listener
    home, project = tmp_path / "home", tmp_path / "project"
    _settle(home, project, url)
    given = {
        "HOME": str(home),
        "PATH": f"{NODE.parent}:{os.environ['PATH']}",
        "TERM": "screen-256color",
        "LANG": "C.UTF-8",
        "GEMINI_API_KEY": "rehearsal-key",
        "GOOGLE_GEMINI_BASE_URL": url,
    }
    environment = [f"{name}={value}" for name, value in given.items()]
    modules = packages / "node_modules"
    # opencode's own link is made by a script of its package, and none is run.
    command = str(
        min(modules.glob("opencode-*/bin/opencode")) if program == "opencode" else modules / ".bin" / program
    )
    pane = desk.window(program, "env", "-C", str(project), "-i", *environment, command)
    settings = {"agent": "coder", "kind": "tmux", "pane": pane, "program": program, "socket": desk.socket}
    found = TmuxAdapter(program, TmuxSettings.model_validate(settings))

    try:
        await _try(found, desk, pane, heard)
    finally:
        desk.run("kill-window", "-t", pane)  # or the stand-in would wait for its connections


async def _try(found: TmuxAdapter, desk: Terminals, pane: str, heard: Listener) -> None:
    async def sees(reason: str) -> bool:
        return (await found.look()).reason == reason

    await eventually(lambda: sees(""), within=60)
    assert (await found.look()).state == "idle"
    desk.run("send-keys", "-t", pane, "-l", "my draft")
    await eventually(lambda: sees("runtime.busy"), within=20)
    desk.run("send-keys", "-t", pane, "Home")
    desk.wait_for(pane, "my draft")
    assert await sees("runtime.busy"), "wherever the cursor is"
    assert (await carry_out(found, text=ASKED)).outcome == ("failed", "runtime.busy")
    desk.run("send-keys", "-t", pane, "C-e", "C-u")
    await eventually(lambda: sees(""), within=20)

    assert (await carry_out(found, text=ASKED)).outcome == ("delivered", "")
    await eventually(lambda: json.dumps(ASKED)[1:-1] in heard.heard, within=60)
    assert "my draft" not in heard.heard
