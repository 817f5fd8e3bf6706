"""The demo: scenes that send real webhooks to a throw-away instance and check what comes back.

A scene is an async generator of Steps over a Stage; add one to `SCENES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx2

from gofer_standins import task
from gofer_standins.anthropic import Anthropic
from gofer_standins.github.scene import issue_to_pull
from gofer_standins.hello import Fault, HelloService
from gofer_standins.instance import Instance, throw_away
from gofer_standins.loopback import serve
from gofer_standins.telegram.scene import from_the_phone


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened, and whether it was what should happen."""

    what: str
    ok: bool
    ms: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What scenes play on."""

    instance: Instance
    http: httpx2.AsyncClient
    hello: HelloService
    connection: str
    model: Anthropic
    """A stand-in for a model's provider, with a script."""

    async def post(self, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        """A webhook over HTTP."""
        return await self.http.post(
            f"{self.instance.url}/hooks/{self.connection}", content=body, headers=headers
        )

    async def send(self, id: str, room: str, text: str) -> httpx2.Response:
        """A signed message."""
        body = self.hello.message(id, room, text)
        return await self.post(body, self.hello.signed(body))


Scene = Callable[[Stage], AsyncIterator[Step]]


class Watch:
    """Measures steps: each takes the time since the one before."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def step(self, what: str, ok: bool, detail: str = "") -> Step:
        """A step that ends now."""
        before, self._last = self._last, time.perf_counter()
        return Step(what, ok, round((self._last - before) * 1000, 1), detail)


async def one_message(stage: Stage) -> AsyncIterator[Step]:
    """A signed message becomes a durable job and one delivered reply."""
    watch = Watch()
    answer = await stage.send("m1", "lobby", "Good morning!")
    yield watch.step("webhook acknowledged, after the commit", answer.json() == {"result": "accepted"})
    came = await stage.hello.wait_for(lambda ledger: len(ledger) == 1)
    yield watch.step("reply delivered", came, stage.hello.ledger[0].text if came else "no reply came")


async def a_repeat(stage: Stage) -> AsyncIterator[Step]:
    """The service sends the same delivery again, as services do."""
    watch = Watch()
    answer = await stage.send("m1", "lobby", "Good morning!")
    yield watch.step("repeat recognised", answer.json() == {"result": "repeat"})


async def a_forgery(stage: Stage) -> AsyncIterator[Step]:
    """Somebody without the key tries the door."""
    watch = Watch()
    body = stage.hello.message("m2", "lobby", "Let me in")
    unsigned = await stage.post(body, {"content-type": "application/json"})
    yield watch.step("unsigned request refused", unsigned.status_code == 401, "401, nothing stored")
    forged = await stage.post(body, {**stage.hello.signed(body), "x-hello-signature": "0" * 64})
    yield watch.step("forged signature refused", forged.status_code == 401, "401, nothing stored")


async def two_at_once(stage: Stage) -> AsyncIterator[Step]:
    """Two messages to one conversation, the second while the first is being worked on."""
    watch = Watch()
    for id, text in (("m3", "$ sleep 0.5; echo the first is done"), ("m4", "$ echo so is the second")):
        answer = await stage.send(id, "workshop", text)
        yield watch.step(f"message {id} acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    replies = [reply for reply in stage.hello.ledger if reply.room == "workshop"]
    # One reply may answer both; what it must not do is leave the second out.
    well = settled and 1 <= len(replies) <= 2 and "so is the second" in replies[-1].text
    yield watch.step(
        "both answered, one run at a time", well, replies[-1].text if replies else "no reply came"
    )


async def a_lost_answer(stage: Stage) -> AsyncIterator[Step]:
    """The service takes a reply and the connection breaks before it says so."""
    watch = Watch()
    stage.hello.faults.append(Fault("dropped"))
    answer = await stage.send("m5", "cellar", "Is anybody there?")
    yield watch.step("webhook acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    found = [reply for reply in stage.hello.ledger if reply.to == "m5"]
    once = settled and len(found) == 1
    yield watch.step("looked before sending again", once, f"{len(found)} reply in the service's ledger")


async def an_issue(stage: Stage) -> AsyncIterator[Step]:
    """A request on a GitHub issue becomes a draft pull request."""
    watch = Watch()
    async for what, ok, detail in issue_to_pull(stage.instance):
        yield watch.step(what, ok, detail)


async def a_phone(stage: Stage) -> AsyncIterator[Step]:
    """A person on Telegram is paired, asks, and is answered."""
    watch = Watch()
    async for what, ok, detail in from_the_phone(stage.instance):
        yield watch.step(what, ok, detail)


async def a_real_task(stage: Stage) -> AsyncIterator[Step]:
    """A model gets a key, and works on a task with tools in a real shell."""
    watch = Watch()
    await stage.instance.ask("PUT", "/secrets", json={"name": "anthropic_key", "value": task.KEY})
    yield watch.step("model key put into the vault, without a restart", True)
    answer = await stage.send("m6", "bench", task.ASK)
    yield watch.step("task acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    replies = [reply for reply in stage.hello.ledger if reply.to == "m6"]
    told = replies[0].text if replies else "no reply came"
    turns, well = len(stage.model.received), settled and len(replies) == 1 and task.SUM in told
    yield watch.step(f"answered with what the shell printed, after {turns} model calls", well, told)
    yield watch.step("every request to the model was valid", not stage.model.refused)


SCENES: tuple[tuple[str, Scene], ...] = (
    ("A message", one_message),
    ("A repeat", a_repeat),
    ("A forgery", a_forgery),
    ("Two at once", two_at_once),
    ("A lost answer", a_lost_answer),
    ("A phone on Telegram", a_phone),
    ("An issue on GitHub", an_issue),
    ("A real task", a_real_task),
)


async def play() -> AsyncIterator[tuple[str, Step]]:
    """Start everything, play every scene, check the ledger, end everything."""
    async with _stage() as stage:
        yield "The start", Step("instance ready", True, round(stage.instance.started_in * 1000, 1))
        for name, scene in SCENES:
            async for step in scene(stage):
                yield name, step
        async for step in _reckoning(stage):
            yield "The reckoning", step


@contextlib.asynccontextmanager
async def _stage() -> AsyncIterator[Stage]:
    hello = HelloService(signing_key=secrets.token_urlsafe(32))
    model = Anthropic(task.script, key=task.KEY)
    async with (
        hello.open(),
        serve(model.app) as provider,
        throw_away(anthropic_base_url=provider, request_timeout="2") as instance,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        made = await instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "hello",
                "name": "demo",
                "settings": {"reply_url": hello.url},
                "secrets": {"signing_key": hello.signing_key},
            },
        )
        yield Stage(instance, http, hello, made["connection"]["id"], model)


async def _reckoning(stage: Stage) -> AsyncIterator[Step]:
    """What the service's own ledger says, once nothing is left to do."""
    watch = Watch()
    quiet = await _until_quiet(stage)
    yield watch.step("nothing left to do, nothing dead", quiet)
    ledger = stage.hello.ledger
    keys = [reply.key for reply in ledger]
    once = len(keys) == len(set(keys)) and not stage.hello.refused
    yield watch.step("every reply exactly once in the service's ledger", once, f"{len(keys)} replies")


async def _until_quiet(stage: Stage, patience: float = 60) -> bool:
    """Wait until no job is open; False when one is dead or still open after that."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        jobs = (await stage.instance.ask("GET", "/status"))["jobs"]
        if not jobs or set(jobs) == {"dead"}:
            return not jobs
        await asyncio.sleep(0.02)
    return False
