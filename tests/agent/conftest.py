"""What the agent's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent.ports import LocalShell, World
from gofer.agent.models.anthropic import Anthropic as AnthropicModel
from gofer.agent.models.breaker import Breakers
from gofer.agent.models.steady import Steady
from gofer.rehearsal.anthropic import Anthropic, Reply, Script
from gofer.rehearsal.loopback import serve

Make = Callable[..., Any]


@pytest.fixture
async def rehearse(tmp_path: Path) -> AsyncIterator[Make]:
    """A world whose model is the stand-in with this script: `world, service = await rehearse(script)`."""
    async with AsyncExitStack() as stack:

        async def make(script: Script | Reply, *more: Reply, **options: Any) -> tuple[World, Anthropic]:
            replies: Script = [script, *more] if isinstance(script, Reply) else script
            service = Anthropic(replies)
            url = await stack.enter_async_context(serve(service.app))
            stall = options.pop("stall", 20)
            window = options.pop("context_window", 200_000)
            model = AnthropicModel(
                options.pop("model", "claude-sonnet-5-5"),
                service.key,
                base_url=url,
                http=await stack.enter_async_context(httpx2.AsyncClient()),
                stall=stall,
                context_window=window,
            )
            steady = Steady(model, options.pop("breakers", None) or Breakers(), sleep=_no_sleep)
            return World(model=steady, shell=LocalShell(tmp_path), **options), service

        yield make


async def _no_sleep(seconds: float) -> None:
    return None
