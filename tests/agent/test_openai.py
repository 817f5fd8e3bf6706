"""A chat completions server drives the same loop, through the real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent.pictures import PNG
from agent.ports import LocalShell, World, ada
from gofer.agent.agents import AgentSpec
from gofer.agent.conversation import Picture
from gofer.agent.limits import LimitSettings
from gofer.agent.models.breaker import Breakers
from gofer.agent.models.catalogue import Catalogue, Provider
from gofer.agent.models.openai import OpenAI as OpenAIModel
from gofer.agent.models.steady import Steady
from gofer.agent.outcome import Answered, Failed, Stopped
from gofer.rehearsal.loopback import serve
from gofer.rehearsal.openai import OpenAI, Reply

Make = Callable[..., Any]
FREE = AgentSpec(name="gofer", limits=LimitSettings(job_dollars=0, day_dollars=0))


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def make(*replies: Reply) -> tuple[World, OpenAI]:
            service = OpenAI(replies)
            url = await stack.enter_async_context(serve(service.app))
            http = await stack.enter_async_context(httpx2.AsyncClient())
            model = OpenAIModel("llama", service.key, base_url=f"{url}/v1", http=http, provider="local")
            steady = Steady(model, Breakers(), sleep=_no_sleep)
            return World(model=steady, shell=LocalShell(tmp_path), spec=FREE), service

        yield make


async def _no_sleep(seconds: float) -> None:
    return None


async def test_tools_run_and_results_go_back_in_their_shape(local: Make) -> None:
    world, service = await local(
        Reply("Let me see.", (("bash", {"command": "echo 42"}), ("ls", {}))),
        Reply("", (("bash", {"command": "echo 43"}),)),
        Reply("It is 42, then 43."),
    )
    assert await world.run() == Answered("It is 42, then 43.", included_to=1)
    assert service.refused == []
    roles = [message["role"] for message in service.received[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    assert service.received[-1]["messages"][3]["content"] == "42"
    usage = world.journal.last("turn.finished")["usage"]
    assert usage["cache_read"] > 0
    assert usage["output"] == 7


async def test_a_server_that_says_little_is_understood_and_its_cost_estimated(local: Make) -> None:
    both = (("bash", {"command": "echo 42"}), ("bash", {"command": "echo 43"}))
    world, service = await local(Reply("", both, sparse=True), Reply("Both.", sparse=True))
    assert await world.run() == Answered("Both.", included_to=1)
    assert world.shell.commands == ["echo 42", "echo 43"]
    assert service.refused == []
    usage = world.journal.last("turn.finished")["usage"]
    assert usage["input"] > 500
    assert usage["output"] > 0


@pytest.mark.parametrize("fault", ["cut", "server_error", "rate_limit", "bad_gateway"])
async def test_what_passes_is_tried_again(local: Make, fault: Any) -> None:
    world, service = await local(Reply("Half", fault=fault), Reply("Whole."))
    assert await world.run() == Answered("Whole.", included_to=1)
    assert len(service.received) == 2
    assert (world.journal.last("turn.failed")["usage"]["input"] > 0) == (fault == "cut"), (
        "what began is charged"
    )


@pytest.mark.parametrize(
    "reply",
    [
        Reply("", (("bash", {"command": "touch ran"}),), fault="length_in_call"),
        Reply("", (("bash", '{"command": "touch ran", }'),)),
        Reply("", (("bash", '["touch ran"]'),)),
        Reply("", (("bash", {"command": "touch ran"}),), fault="cut"),
    ],
)
async def test_a_broken_call_is_never_run(local: Make, reply: Reply) -> None:
    world, service = await local(reply, Reply("Nothing was run."))
    assert await world.run() == Answered("Nothing was run.", included_to=1)
    assert world.shell.commands == []
    assert service.refused == []


async def test_refused_key_unknown_finish_and_too_long(local: Make) -> None:
    world, _ = await local(Reply(fault="auth"))
    outcome = await world.run()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "model.auth"
    world, _ = await local(Reply("x", finish="gremlins"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.stopped"
    assert outcome.text == "x\n\n" + outcome.sentence
    world, _ = await local(Reply(fault="too_long"), Reply(fault="too_long"), Reply(fault="too_long"))
    outcome = await world.run()
    assert isinstance(outcome, Stopped)
    assert outcome.code == "model.context"


async def test_pictures_are_sent_as_data_urls(local: Make) -> None:
    world, service = await local(Reply("A dot."))
    ref = await world.blobs.put(PNG, "image/png")
    world.inbox.messages = [ada("See?", pictures=(Picture(ref, "image/png"),))]
    assert isinstance(await world.run(), Answered)
    part = service.received[0]["messages"][1]["content"][1]
    assert part["image_url"]["url"].startswith("data:image/png;base64,")


def test_a_local_server_is_a_provider_with_a_name_of_its_own() -> None:
    catalogue = Catalogue({"ollama": Provider(base_url="http://localhost:11434/v1", context_window=8192)})
    model = catalogue.model("ollama/llama3:8b")
    assert model.name == "ollama/llama3:8b"
    assert model.context_window == 8192
