"""Models by name, such as anthropic/claude-sonnet-5-5: one adapter per process and name, with retries, a breaker and a
fallback around it."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpx2

from gofer.agent.model import (
    Attempted,
    Delta,
    Features,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Turn,
    Usage,
    sendable,
)
from gofer.agent.models import anthropic
from gofer.agent.models.anthropic import Anthropic
from gofer.agent.models.offline import Offline
from gofer.agent.models.openai import OpenAI
from gofer.agent.models.providers import ALL, ModelSettings
from gofer.agent.prices import Price
from gofer.errors import ConfigError

AUTO = "anthropic/claude-sonnet-5-5"
_MILLION = re.compile(r"claude-\w+-5")
TRIES = 4
MAX_SLEEP = 60.0
AUTH_PAUSE = 600.0
OPENS_AFTER = 5
FIRST_PAUSE, MAX_PAUSE = 30.0, 600.0
MAX_CALLERS = 10_000


@dataclass(slots=True)
class CallerHealth:
    """One caller's failures since the model last worked for it."""

    pauses: int = 0
    until: float = 0
    """Until then this caller does not call, while the breaker is open."""
    own_fault: bool = False
    """The model has worked for another caller since: what this caller sends is at fault, and opens no breaker."""


@dataclass(slots=True)
class Breaker:
    """The state of one provider and model, shared by all runs of the process. When a model keeps failing, callers that
    met that stop calling it for a while.

    A failure may be the provider's fault or lie in what one conversation sends. So a breaker remembers who has failed:
    others may try at once, and when that works the model is well again for all.
    """

    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    """In a row, of all callers together."""
    open: bool = False
    for_all: float = 0
    """Until then nobody calls, because the key was refused."""
    reason: str = ""
    callers: dict[str, CallerHealth] = field(default_factory=dict)
    probes: set[str] = field(default_factory=set)
    """Callers that probe now, while it is open."""

    def wait(self, caller: str = "") -> float:
        """Seconds until this caller may call; 0 when it may now."""
        if not self.open:
            return 0
        now = self.clock()
        known = self.callers.get(caller)
        left = max(self.for_all, known.until if known else 0) - now
        if left > 0:
            return left
        # One probe of those who have failed and one of those who have not: the first cannot keep the second waiting.
        if any((probe in self.callers) == (caller in self.callers) for probe in self.probes):
            return 1
        self.probes.add(caller)
        return 0

    def succeeded(self, caller: str = "") -> None:
        self.failures, self.open, self.for_all, self.reason = 0, False, 0, ""
        self.probes.clear()
        self.callers.pop(caller, None)
        for other in self.callers.values():
            other.own_fault = True

    def failed(self, reason: str, caller: str = "", *, at_once: bool = False) -> bool:
        """Count a failure; True when this one opened the breaker."""
        known = self.callers.setdefault(caller, CallerHealth())
        if known.own_fault and not self.open and not at_once:
            return False
        self.failures += 1
        while len(self.callers) > MAX_CALLERS:
            del self.callers[next(iter(self.callers))]
        if not (at_once or self.open or self.failures >= OPENS_AFTER):
            return False
        opened, self.open, self.reason = not self.open, True, reason
        known.until = self.clock() + min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(known.pauses, 10))
        known.pauses += 1
        if at_once:
            self.for_all = known.until
        return opened

    def let_go(self, caller: str = "") -> None:
        """End a probe: others need not wait for it any more."""
        self.probes.discard(caller)


@dataclass(slots=True)
class Breakers:
    """All breakers, by provider and model."""

    on_open: Callable[[str, str], None] = lambda name, reason: None
    """Told when one opens, to alert somebody."""
    clock: Callable[[], float] = time.monotonic
    _all: dict[str, Breaker] = field(default_factory=dict)

    def of(self, name: str) -> Breaker:
        return self._all.setdefault(name, Breaker(self.clock))

    def states(self) -> dict[str, float]:
        """The open breakers, and the seconds until callers that failed may try again."""
        now = self.clock()
        return {
            name: max(0.0, min((each.until for each in one.callers.values()), default=now) - now)
            for name, one in self._all.items()
            if one.open
        }


@dataclass(frozen=True, slots=True)
class Provider:
    """How to reach a provider: `anthropic`, `openai`, or a name of the user's for a compatible server."""

    key: str = field(default="", repr=False)
    base_url: str | None = None
    speaks: str = "openai"
    """anthropic or openai."""
    key_name: str = ""
    """The secret that the key is kept as; empty for a server that needs none."""
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def settings(self, model: str) -> ModelSettings:
        """The settings of a model, and of all models."""
        return self.models.get(model, ModelSettings()).over(self.models.get(ALL, ModelSettings()))


@dataclass(slots=True)
class Catalogue:
    """The models there are. One per process, so that breakers and connections are shared."""

    providers: dict[str, Provider]
    breakers: Breakers = field(default_factory=Breakers)
    http: httpx2.AsyncClient | None = None
    problem: str = ""
    """What is wrong with the user's file of providers; its last good version is in force."""
    _made: dict[tuple[str, str], Model] = field(default_factory=dict)

    def model(self, name: str, *, fallback: str = "", effort: str = "", caller: str = "") -> Model:
        """The model with retries, and with a fallback if one is named; raises ConfigError.

        `caller` is who calls it: a conversation whose calls always fail does not keep others from theirs.
        """
        first = self._steady(self.resolve(name), effort, caller)
        return Fallback(first, self._steady(self.resolve(fallback), effort, caller)) if fallback else first

    async def ready(self, name: str, *, fallback: str = "", effort: str = "", caller: str = "") -> Model:
        """The model, after its server was asked what it takes."""
        model = self.model(name, fallback=fallback, effort=effort, caller=caller)
        for each in (name, fallback):
            adapter = self._adapter(self.resolve(each), effort) if each else None
            if isinstance(adapter, OpenAI):
                await adapter.prepare()
        return model

    def resolve(self, name: str) -> str:
        """What `auto` stands for now."""
        if name != "auto":
            return name
        known = self.providers.get("anthropic")
        return AUTO if known is not None and known.key else Offline.name

    def key_name(self, name: str) -> str:
        """The name of the secret with a model's key; empty when it needs none."""
        known = self.providers.get(self.resolve(name).partition("/")[0])
        return known.key_name if known is not None else ""

    def prices(self) -> dict[str, Price]:
        """What the user's own models cost, where their settings say so."""
        return {
            f"{name}/{model}": settings.price
            for name, provider in self.providers.items()
            for model, settings in provider.models.items()
            if settings.price is not None
        }

    def _steady(self, name: str, effort: str, caller: str) -> Model:
        adapter = self._adapter(name, effort)
        return (
            adapter if isinstance(adapter, Offline) else ResilientModel(adapter, self.breakers, caller=caller)
        )

    def _adapter(self, name: str, effort: str) -> Model:
        if (name, effort) not in self._made:
            self._made[name, effort] = self._make(name, effort)
        return self._made[name, effort]

    def _make(self, name: str, effort: str) -> Model:
        provider, _, model = name.partition("/")
        if provider == "offline":
            return Offline()
        known = self.providers.get(provider)
        if known is None:
            there = ", ".join(sorted(self.providers)) or "none"
            why = f" {self.problem}" if self.problem else ""
            raise ConfigError(f"No provider called {provider!r} is configured (there are: {there}).{why}")
        if known.key_name and not known.key:
            raise ConfigError(f"{name} needs a key. Run: gofer secrets put {known.key_name}")
        settings = known.settings(model)
        if provider == "anthropic" or known.speaks == "anthropic":
            if not known.key:
                raise ConfigError(f"{name} needs a key. Run: gofer secrets put anthropic_key")
            window = 1_000_000 if _MILLION.match(model) else 200_000
            return Anthropic(
                model,
                known.key,
                base_url=known.base_url,
                http=self.http,
                provider=provider,
                settings=settings.over(ModelSettings(window=window)),
                effort=effort,
            )
        return OpenAI(
            model,
            known.key,
            base_url=known.base_url,
            http=self.http,
            provider=provider,
            settings=settings,
            effort=effort,
        )


async def load_sdks(providers: Mapping[str, Provider]) -> list[str]:
    """Import what these providers need, beside everything else; returns what was imported."""
    if not any(provider.speaks == "anthropic" for provider in providers.values()):
        return []
    await asyncio.to_thread(anthropic.load)
    return ["anthropic"]


@dataclass(eq=False)
class ResilientModel:
    """Wraps a model with retries and its breaker."""

    model: Model
    breakers: Breakers
    caller: str = ""
    """Who calls, as the breaker tells callers apart: a conversation."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.name = self.model.name

    @property
    def context_window(self) -> int:
        return self.model.context_window

    @property
    def features(self) -> Features:
        return self.model.features

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for attempt in range(1, TRIES + 1):
            breaker = self.breakers.of(self.name)
            if (wait := breaker.wait(self.caller)) > 0:
                text = f"{self.name} keeps failing and rests for {wait:.0f} s: {breaker.reason}"
                raise ModelError("unavailable", text, retry_after=wait, model=self.name)
            try:
                async for event in self._guarded(request, breaker):
                    yield event
                return
            except ModelError as error:
                delay = self._delay(error, attempt)
                if delay is None:
                    raise
                yield Attempted(str(error), error.usage, self.name)
                await self.sleep(delay)

    async def _guarded(self, request: ModelRequest, breaker: Breaker) -> AsyncIterator[ModelEvent]:
        """One try, whose end the breaker learns of."""
        try:
            async for event in self.model.stream(request):
                if isinstance(event, Turn):
                    breaker.succeeded(self.caller)
                elif isinstance(event, Delta):
                    breaker.let_go(self.caller)
                yield sendable(event)
        except ModelError as error:
            if error.kind in ("retryable", "auth"):
                if breaker.failed(str(error), self.caller, at_once=error.kind == "auth"):
                    self.breakers.on_open(self.name, str(error))
            else:
                breaker.succeeded(self.caller)
            raise
        finally:
            breaker.let_go(self.caller)

    def _delay(self, error: ModelError, attempt: int) -> float | None:
        """Seconds to wait before the next try; None when there is none in this process."""
        if error.kind == "auth":
            error.retry_after = AUTH_PAUSE
        if error.kind != "retryable":
            return None
        if error.retry_after is not None and error.retry_after > MAX_SLEEP:
            error.kind = "unavailable"
            return None
        if attempt == TRIES:
            error.retry_after = error.retry_after or 30.0
            return None
        backoff = random.SystemRandom().uniform(0.5, 1) * (1 << attempt - 1)
        return max(error.retry_after or 0, backoff)


class Fallback:
    """A first model, and a second for when the first cannot be had. Prices of both are known at the start."""

    def __init__(self, first: Model, second: Model) -> None:
        self.name = first.name
        self.names = (first.name, second.name)
        self._first = first
        self._second = second

    @property
    def context_window(self) -> int:
        return min(self._first.context_window, self._second.context_window)

    @property
    def features(self) -> Features:
        first, second = self._first.features, self._second.features
        most = [each for each in (first.output_tokens, second.output_tokens) if each]
        return Features(first.images and second.images, first.pdfs and second.pdfs, min(most, default=None))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            async for event in self._first.stream(request):
                yield event
            return
        except ModelError as error:
            if error.kind not in ("retryable", "unavailable", "auth"):
                raise
            yield Attempted(str(error), error.usage or Usage(), self._first.name)
        async for event in self._second.stream(request):
            yield event
