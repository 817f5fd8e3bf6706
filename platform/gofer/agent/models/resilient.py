"""A model made steady: tries again what may work, stops asking what keeps failing, falls back to a second model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

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
)
from gofer.agent.models.breaker import Breaker, Breakers
from gofer.agent.models.surrogates import sendable

TRIES = 4
LONGEST_SLEEP = 60.0
AUTH_PAUSE = 600.0


class Steady:
    """Wraps a model with retries and its breaker."""

    def __init__(
        self,
        model: Model,
        breakers: Breakers,
        *,
        caller: str = "",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = model.name
        self._model = model
        self._breakers = breakers
        self._caller = caller
        """Who calls, as the breaker tells callers apart: a conversation."""
        self._sleep = sleep

    @property
    def context_window(self) -> int:
        return self._model.context_window

    @property
    def features(self) -> Features:
        return self._model.features

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for attempt in range(1, TRIES + 1):
            breaker = self._breakers.of(self.name)
            if (wait := breaker.wait(self._caller)) > 0:
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
                await self._sleep(delay)

    async def _guarded(self, request: ModelRequest, breaker: Breaker) -> AsyncIterator[ModelEvent]:
        """One try, whose end the breaker learns of."""
        try:
            async for event in self._model.stream(request):
                if isinstance(event, Turn):
                    breaker.succeeded(self._caller)
                elif isinstance(event, Delta):
                    breaker.let_go(self._caller)
                yield sendable(event)
        except ModelError as error:
            if error.kind in ("retryable", "auth"):
                if breaker.failed(str(error), self._caller, at_once=error.kind == "auth"):
                    self._breakers.on_open(self.name, str(error))
            else:
                breaker.succeeded(self._caller)
            raise
        finally:
            breaker.let_go(self._caller)

    def _delay(self, error: ModelError, attempt: int) -> float | None:
        """Seconds to wait before the next try; None when there is none in this process."""
        if error.kind == "auth":
            error.retry_after = AUTH_PAUSE
        if error.kind != "retryable":
            return None
        if error.retry_after is not None and error.retry_after > LONGEST_SLEEP:
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
