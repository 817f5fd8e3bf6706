"""The real llama.cpp server, with a model of random weights: how it tells its window, streams, counts and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from benchmarks.peers import Peer

from e2e.process import free_port
from gofer.agent.model import Block, Model, ModelError, Request, Turn
from gofer.agent.models.catalogue import Catalogue, Provider
from gofer.agent.models.providers import ModelSettings
from support.patience import patiently

pytestmark = pytest.mark.peer
WINDOW = 2048
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


def asking(*blocks: Block) -> Request:
    return Request("You are terse.", (), ({"role": "user", "content": list(blocks)},), 20)


async def refused(model: Model, request: Request) -> ModelError:
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
        error = await refused(unknown, asking({"type": "text", "text": "word " * 3000}))
        assert (error.kind, error.window) == ("context", WINDOW)
        assert unknown.context_window == WINDOW, "learnt from the refusal"

        source = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
        error = await refused(unknown, asking({"type": "image", "source": source}))
        assert error.kind == "image"
