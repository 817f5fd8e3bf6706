"""Coding agents that people really run, offline: their model is a stand-in on loopback, all else is theirs.

Claude Code in a pane of tmux, and an agent of somebody else's that speaks ACP.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.node_peers import NODE, ROOT, NotInstalled, install
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from gofer_standins.loopback import serve
from support.async_bridge import Elsewhere
from support.patience import until
from support.terminals import Terminals, needs_tmux, terminals
from support.web_server import House

from .conftest import furnish
from .test_host import Station, _open_question

pytestmark = [pytest.mark.peer, needs_tmux]

KEY = "rehearsal-key-of-the-peers"
TOOLS = ("mcp__gofer__acknowledge", "mcp__gofer__post_message")
FILE = """
host = "laptop"
url = "{url}"
state = "{folder}/state"

[runtimes.{runtime}]
cwd = "{folder}/project"
env = ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER",
       "ENABLE_TOOL_SEARCH"]
{more}
"""


class Model(Anthropic):
    """Takes whatever the agents send to Anthropic, and plays a model that does as Gofer's text says."""

    def __init__(self) -> None:
        super().__init__(self.play)

    @property
    def app(self) -> Starlette:
        everything = [
            Route("/v1/messages", self._messages, methods=["POST"]),
            Route("/{path:path}", self._other, methods=["GET", "POST", "HEAD"]),
        ]
        return Starlette(routes=everything)

    async def _other(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": 10} if "count_tokens" in request.url.path else {})

    def check(self, body: dict[str, Any]) -> list[str]:
        self.received.append(body)
        return []

    def _unauthorised(self, request: Request) -> Response | None:
        return None

    def play(self, body: Mapping[str, Any]) -> Reply:
        names = [tool["name"] for tool in body.get("tools") or ()]
        asked = [_text(message) for message in body["messages"] if message["role"] == "user"]
        used = [
            (block["name"], block["input"].get("trigger"))
            for message in body["messages"]
            if message["role"] == "assistant" and not isinstance(message["content"], str)
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        told = re.findall(r'conversation_id "(\S+)", trigger (\d+) and hop (\d+)', "\n".join(asked))
        if told and TOOLS[0] in names:
            conversation, trigger, hop = told[-1]
            numbers = {"conversation_id": conversation, "trigger": int(trigger), "hop": int(hop)}
            if (TOOLS[0], int(trigger)) not in used:
                return calls(call(TOOLS[0], **numbers))
            if (TOOLS[1], int(trigger)) not in used:
                return calls(call(TOOLS[1], text=f"The pane answers trigger {trigger}.", **numbers))
            return say("Answered.")
        if "make the file" in "\n".join(asked) and "Bash" in names and not used:
            return calls(call("Bash", command="touch made-by-the-agent", description="Make a file"))
        return say("The agent has said it.")

    def saw(self, *words: str) -> bool:
        """Whether one request had all of these words in it."""
        return any(all(word in json.dumps(body) for word in words) for body in self.received)


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if block["type"] == "text")


@pytest.fixture(scope="module")
def packages() -> Path:
    try:
        return install(ROOT / "benchmarks" / "node" / "agents" / "package.json", ROOT / ".bench" / "agents")
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


class Bench:
    """An agent's own home, its model, and the host that reaches it."""

    def __init__(self, house: House, agent: str, kind: str, folder: Path) -> None:
        self.house, self.folder = house, folder
        self.scene = furnish(house, agent, kind=kind)
        self.station = Station(self.scene, folder)
        self.model = Model()
        self._loop = Elsewhere()
        self._serving = serve(self.model.app)
        self.environment = {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self._loop.run(self._serving.__aenter__()),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }
        for name in ("home", "project"):
            (folder / name).mkdir()
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(folder / "project"): {"hasTrustDialogAccepted": True}},
        }
        (folder / "home" / ".claude.json").write_text(json.dumps(known))

    def host(self, more: str) -> None:
        path = self.folder / "runtimes.toml"
        path.write_text(
            FILE.format(url=self.house.url, folder=self.folder, runtime=self.scene.runtime, more=more)
        )
        path.chmod(0o600)
        self.station.start(**self.environment)

    def ask(self, text: str) -> tuple[str, list[tuple[str, str, str]]]:
        """What the conversation says to a question, and the hops on the way."""
        conversation, trigger = self.scene.say(text)
        self.scene.until(lambda: self.scene.job(trigger)["job"]["state"] in ("done", "dead"), 90)
        hops = self.scene.hops(trigger)
        said = self.scene.until(lambda: self.scene.replies(conversation), 20)
        assert len(said) == 1, said
        return said[0], hops

    def close(self) -> None:
        self.station.close()
        self._loop.run(self._serving.__aexit__(None, None, None))
        self._loop.close()
        self.scene.owner.delete(f"/runtimes/{self.scene.runtime}")


def test_claude_code_in_a_pane_answers_and_its_session_is_resumed(
    packages: Path, house: House, desk: Terminals, tmp_path: Path
) -> None:
    bench = Bench(house, "pane", "tmux", tmp_path)
    try:
        (program,) = (packages / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude")
        token = bench.scene.program.headers["authorization"]
        server = {"type": "http", "url": f"{house.url}/mcp", "headers": {"Authorization": token}}
        tools = tmp_path / "mcp.json"
        tools.write_text(json.dumps({"mcpServers": {"gofer": server}}))
        command = [
            str(program),
            "--mcp-config",
            str(tools),
            "--strict-mcp-config",
            "--allowedTools",
            ",".join(TOOLS),
        ]
        given = [f"{name}={value}" for name, value in bench.environment.items()]
        where = [
            "env",
            "-C",
            str(tmp_path / "project"),
            "-i",
            f"PATH={os.environ['PATH']}",
            "TERM=screen",
            *given,
        ]
        pane = desk.window("claude", *where, *command)
        desk.wait_for(pane, "❯")
        resume = [*command[:1], "--continue", *command[1:]]
        bench.host(
            f'agent = "pane"\nkind = "tmux"\npane = "desk:claude"\nprogram = "claude"\nsocket = "{desk.socket}"\n'
            f"resume = {json.dumps(resume)}"
        )
        bench.station.wait_for("idle")
        said, hops = bench.ask("What is the first thing?")
        assert "The pane answers trigger" in said
        assert hops == [("live", "answered", "")]

        # A draft of the user's is not sent with what people ask: the agent counts as busy.
        desk.run("send-keys", "-t", pane, "-l", "my draft")
        until(
            lambda: bench.scene.owner.get(f"/runtimes/{bench.scene.runtime}").json()["state"] == "live",
            within=60,
        )
        desk.run("send-keys", "-t", pane, "C-u")
        bench.station.wait_for("idle")

        desk.run("kill-window", "-t", pane)
        bench.station.wait_for("offline")
        said, hops = bench.ask("And what is the second?")
        assert "The pane answers trigger" in said
        assert hops[-1] == ("resume", "answered", "")
        assert bench.model.saw("What is the first thing?", "And what is the second?"), (
            "the same session goes on"
        )
    finally:
        bench.close()


def test_an_agent_that_speaks_acp_answers_and_asks_before_it_acts(
    packages: Path, house: House, tmp_path: Path
) -> None:
    bench = Bench(house, "coder", "acp", tmp_path)
    try:
        entry = packages / "node_modules" / "@zed-industries" / "claude-code-acp" / "dist" / "index.js"
        bench.host(
            f'agent = "coder"\nkind = "acp"\ncommand = {json.dumps([str(NODE), str(entry)])}\nready_within = 120'
        )
        bench.station.wait_for("idle")
        said, hops = bench.ask("Who are you?")
        assert "The agent has said it." in said
        assert hops == [("live", "answered", "")]

        scene = bench.scene
        conversation, trigger = scene.say("Please make the file.")
        asked = scene.until(lambda: _open_question(scene, conversation), 60)
        assert "The agent asks for permission" in asked["question"]
        allow = next(each for each in asked["choices"] if each.startswith(("Allow", "Yes")))
        assert not (tmp_path / "project" / "made-by-the-agent").exists()
        scene.owner.post(f"/questions/{asked['id']}/answer", json={"text": allow})
        scene.until(lambda: scene.job(trigger)["job"]["state"] == "done", 60)
        assert (tmp_path / "project" / "made-by-the-agent").exists()
    finally:
        bench.close()
