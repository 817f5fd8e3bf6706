"""The real llama.cpp server, with a model of random weights: how it tells its window, streams, counts and refuses,
and whole runs in which it calls tools. Its grammar makes the calls valid, however little the model knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from benchmarks.peers import Peer
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from agent.ports import LocalShell, World
from e2e.process import free_port
from gofer.agent.limits import LimitSettings
from gofer.agent.model import Block, Model, ModelError, ModelRequest, Turn
from gofer.agent.models.catalogue import Catalogue, Provider
from gofer.agent.models.providers import ModelSettings
from gofer.agent.outcome import Answered
from gofer.runs.agent_files import AgentSpec
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_standins.loopback import serve
from support.patience import patiently

pytestmark = pytest.mark.peer
WINDOW = 32_768
LLAMA_CPP = Peer("llama.cpp", ("xllamacpp==2026.10.11549", "gguf==0.19.0"), "")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    try:
        python = await LLAMA_CPP._installed()
    except OSError as error:
        pytest.skip(str(error))
    port = free_port()
    script = Path(__file__).parent / "llama_cpp_server.py"
    process = await asyncio.create_subprocess_exec(
        str(python), str(script), str(tmp_path), str(port), str(WINDOW),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}/v1"
    try:
        async with patiently(30), httpx2.AsyncClient() as http:
            while not await _answers(http, base):
                await asyncio.sleep(0.1)
        yield base
    finally:
        process.kill()
        await process.wait()


async def _answers(http: httpx2.AsyncClient, base: str) -> bool:
    try:
        return (await http.get(f"{base}/models")).is_success
    except httpx2.TransportError:
        return False


def asking(*blocks: Block) -> ModelRequest:
    return ModelRequest("You are terse.", (), ({"role": "user", "content": list(blocks)},), 20)


async def refused(model: Model, request: ModelRequest) -> ModelError:
    with pytest.raises(ModelError) as raised:
        _ = [event async for event in model.stream(request)]
    return raised.value


async def test_it_tells_its_window_streams_counts_and_refuses_as_we_expect(server: str) -> None:
    async with httpx2.AsyncClient() as http:
        model = await Catalogue({"local": Provider(base_url=server)}, http=http).ready("local/tiny")
        assert model.context_window == WINDOW
        assert not model.features.images
        turn = [event async for event in model.stream(asking({"type": "text", "text": "hi"}))][-1]
        assert isinstance(turn, Turn)
        assert turn.stop in ("max_tokens", "end")
        assert turn.usage.total_input > 10
        assert 0 < turn.usage.output <= 20

        guess = {"*": ModelSettings(window=128_000)}
        unknown = Catalogue({"local": Provider(base_url=server, models=guess)}, http=http).model("local/tiny")
        error = await refused(unknown, asking({"type": "text", "text": "word " * 8000}))
        assert (error.kind, error.window) == ("context", WINDOW)
        assert unknown.context_window == WINDOW, "learnt from the refusal"

        source = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
        error = await refused(unknown, asking({"type": "image", "source": source}))
        assert error.kind == "image"


class Door(Arguments):
    colour: Literal["red", "blue"]


async def paint(arguments: Door, context: ToolContext) -> ToolResult:
    return ToolResult(f"{arguments.colour}\nIt dries.", progress=True)


FREE = AgentSpec(name="gofer", limits=LimitSettings(job_dollars=0, day_dollars=0, output_tokens=2000))


BRIEFLY = [[2, 4], [353, 6]]
"""The tokens that end an answer and begin a call, made likely: chance would take its time."""


@dataclass
class Between:
    """Stands between Gofer and the server, and has it call a tool in the first turns: a model that knows nothing does
    not think of that itself. The server's answers pass as they are."""

    server: str
    turns: int
    asked: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    refusal: bytes = b""
    """What stands in the place of the server's own words when it refuses, if anything does."""
    tells_window: bool = True

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/{path:path}", self._pass, methods=["GET", "POST"])])

    async def _pass(self, request: HttpRequest) -> Response:
        body = await request.body()
        if request.method == "GET" and not self.tells_window:
            return Response("Nothing here.", 404, media_type="text/plain")
        if body:
            asked = json.loads(body)
            with_tools = sum(bool(one.get("tools")) for one in self.asked)
            self.asked.append(asked)
            forced = "required" if with_tools < self.turns else "none"
            forcing = {"tool_choice": forced} if asked.get("tools") else {}
            body = json.dumps({**asked, "seed": 7, "logit_bias": BRIEFLY, **forcing}).encode()
        async with httpx2.AsyncClient(timeout=60) as http:
            place = f"{self.server}/{request.path_params['path']}"
            answer = await http.request(request.method, place, content=body)
        if request.method == "POST":
            self.statuses.append(answer.status_code)
            if answer.status_code == 400 and self.refusal:
                return Response(self.refusal, 400, media_type="application/json")
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])


async def paint_at_length(arguments: Door, context: ToolContext) -> ToolResult:
    return ToolResult(f"{arguments.colour}\n{'It dries. ' * 1100}", progress=True)


async def run(between: Between, tmp_path: Path, paint: Any = paint) -> tuple[World, Any]:
    tools = [Tool("paint", "Paints the door.", Door, paint, Tier.READ, strict=True)]
    guess = {} if between.tells_window else {"*": ModelSettings(window=128_000)}
    async with serve(between.app) as url, httpx2.AsyncClient() as http:
        provider = Provider(base_url=f"{url}/v1", models=guess)
        model = await Catalogue({"local": provider}, http=http).ready("local/tiny")
        world = World(model=model, shell=LocalShell(tmp_path), tools=tools, spec=FREE)
        return world, await world.run()


async def test_it_calls_tools_and_takes_their_results_back(server: str, tmp_path: Path) -> None:
    between = Between(server, turns=2)
    world, outcome = await run(between, tmp_path)
    assert isinstance(outcome, Answered) or outcome.code == "model.empty", "chance may say nothing"
    assert set(between.statuses) == {200}, "every request was valid to it"
    assert any(tool["function"].get("strict") for tool in between.asked[0]["tools"])
    results = [one["content"] for one in between.asked[-1]["messages"] if one["role"] == "tool"]
    assert len(results) >= 2
    assert all(text.startswith(("red\n", "blue\n")) for text in results)
    assert not any(finished["malformed"] for finished in world.journal.all("turn.finished"))


@pytest.mark.parametrize(
    "refusal", [b"", b'{"error": {"message": "No.", "code": 400}}'], ids=["its own", "unknown"]
)
async def test_after_an_overflow_it_is_asked_less_and_answers(
    server: str, tmp_path: Path, refusal: bytes
) -> None:
    """Also when its words for it are unknown: what it refuses and what it takes is its own doing."""
    between = Between(server, turns=4, refusal=refusal, tells_window=False)
    world, outcome = await run(between, tmp_path, paint_at_length)
    assert isinstance(outcome, Answered) or outcome.code == "model.empty", "chance may say nothing"
    assert 1 <= between.statuses.count(400) <= 2, "it refused the turn, and perhaps to sum up so much"
    assert between.statuses[-1] == 200, "and took the shorter request"
    assert [one["reason"] for one in world.journal.all("turn.failed")] == ["context"]
    assert world.journal.all("context.checkpoint") or world.journal.all("context.cleared")
    later = Between(server, turns=1, tells_window=False)
    _, outcome = await run(later, tmp_path)
    assert set(later.statuses) == {200}, "the conversation is not dead"
