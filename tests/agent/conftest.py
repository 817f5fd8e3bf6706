"""What the agent's tests share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent.ports import LocalShell, World
from gofer.agent.model import Features, Model, ModelError, ModelEvent, ModelRequest
from gofer.agent.models.anthropic import Anthropic as AnthropicModel
from gofer.agent.models.anthropic import StreamedAnswer, parameters
from gofer.agent.models.catalogue import Breakers, ResilientModel
from gofer.agent.models.providers import ModelSettings
from gofer_standins.anthropic import Anthropic, Reply, Script
from gofer_standins.loopback import serve

Make = Callable[..., Any]


class Direct:
    """The stand-in without the wire: the same rules and script, for tests of many turns."""

    def __init__(self, service: Anthropic, model: str, context_window: int) -> None:
        self.name = f"anthropic/{model}"
        self.context_window = context_window
        self.features = Features(pdfs=True)
        self._model = model
        self._service = service

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        body = json.loads(json.dumps(parameters(request, self._model)))
        if found := self._service.check(body):
            raise ModelError("invalid", "; ".join(found), model=self.name)
        reply = self._service.next(body)
        assert reply.fault == "", "faults need the wire"
        answer = StreamedAnswer(self.name)
        for event in self._service.events(body, reply):
            for delta in answer.take(event):
                yield delta
        yield answer.turn()


@pytest.fixture
def direct(tmp_path: Path) -> Make:
    """A world whose model is the stand-in with this script: `world, service = direct(script)`."""

    def make(script: Script | Reply, *more: Reply, **options: Any) -> tuple[World, Anthropic]:
        service = Anthropic([script, *more] if isinstance(script, Reply) else script)
        window = options.pop("context_window", 200_000)
        model = Direct(service, options.pop("model", "claude-sonnet-5-5"), window)
        return World(model=model, shell=LocalShell(tmp_path), **options), service

    return make


@pytest.fixture
async def rehearse(tmp_path: Path) -> AsyncIterator[Make]:
    """The same over HTTP and the real SDK: `world, service = await rehearse(script)`."""
    async with AsyncExitStack() as stack:

        async def make(script: Script | Reply, *more: Reply, **options: Any) -> tuple[World, Anthropic]:
            service = Anthropic([script, *more] if isinstance(script, Reply) else script)
            elsewhere = options.pop("base_url", "")
            model: Model = AnthropicModel(
                options.pop("model", "claude-sonnet-5-5"),
                service.key,
                base_url=elsewhere or await stack.enter_async_context(serve(service.app)),
                http=await stack.enter_async_context(httpx2.AsyncClient()),
                settings=ModelSettings(stall_timeout=options.pop("stall", 20)),
            )
            breakers, caller = options.pop("breakers", None) or Breakers(), options.pop("caller", "")
            steady = ResilientModel(model, breakers, caller=caller, sleep=_no_sleep)
            return World(model=steady, shell=LocalShell(tmp_path), **options), service

        yield make


async def _no_sleep(seconds: float) -> None:
    return None
