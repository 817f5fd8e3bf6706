"""A model made steady: tries again what may work, stops asking what keeps failing, falls back to a second model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

from gofer.agent.model import Attempted, Model, ModelError, ModelEvent, Request, Turn, Usage
from gofer.agent.models.breaker import Breaker, Breakers
from gofer.agent.models.words import sendable

TRIES = 4
LONGEST_SLEEP = 60.0
AUTH_PAUSE = 600.0


class Steady:
    """Wraps a model with retries and its breaker."""

    def __init__(
        self, model: Model, breakers: Breakers, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.name = model.name
        self.context_window = model.context_window
        self._model = model
        self._breakers = breakers
        self._sleep = sleep

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        for attempt in range(1, TRIES + 1):
            breaker = self._breakers.of(self.name)
            if (wait := breaker.wait()) > 0:
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

    async def _guarded(self, request: Request, breaker: Breaker) -> AsyncIterator[ModelEvent]:
        """One try, whose end the breaker learns of."""
        try:
            async for event in self._model.stream(request):
                if isinstance(event, Turn):
                    breaker.succeeded()
                yield sendable(event)
        except ModelError as error:
            if error.kind in ("retryable", "auth"):
                if breaker.failed(str(error), at_once=error.kind == "auth"):
                    self._breakers.on_open(self.name, str(error))
            else:
                breaker.succeeded()
            raise
        finally:
            breaker.let_go()

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
        self.context_window = min(first.context_window, second.context_window)
        self._first = first
        self._second = second

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
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
