"""One call of the model: streamed, charged whatever becomes of it, and journaled only when it is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from gofer.agent.context.sizes import CHARACTERS_PER_TOKEN
from gofer.agent.interfaces import Context, Limits
from gofer.agent.limits import Go, Halt
from gofer.agent.model import Attempted, Block, Delta, Model, ModelError, ModelRequest, Turn, Usage
from gofer.agent.models.calls import told_apart
from gofer.agent.outcome import Failed
from gofer.agent.state import Recorder
from gofer.agent.tools.output import Masker, Masking

Stop = Callable[[Halt], Awaitable[None]]

SLOW_AFTER = 30.0
"""Seconds without a word of the model after which people are told that it takes long."""
LONG_PROMPT = 6000
"""Tokens from which on a prompt may be what a server does not like, whatever it says."""
SENTENCES = {
    "auth": "The model's provider refuses the key. Give me another (gofer secrets put), then send it again.",
    "unavailable": "The model cannot be reached now; I will try again.",
    "retryable": "The model failed several times; I will try again.",
    "context": "This is too long for the model, and I could not make it short enough.",
    "image": "The model refuses an image.",
    "invalid": "The model's provider refused the request as invalid.",
}


class ModelCall:
    """The head of the loop."""

    def __init__(
        self, record: Recorder, model: Model, limits: Limits, context: Context, mask: Masker
    ) -> None:
        self._mask = mask
        self._record = record
        self._model = model
        self._limits = limits
        self._context = context
        self._heard = 0
        self._streaming = False

    async def think(self, go: Go, stop: Stop) -> Failed | None:
        """Call the model and journal what came of it."""
        try:
            turn = await self._stream(go)
        except ModelError as error:
            return await self._failed(error, stop)
        if turn.stop == "context_exceeded":
            too_long = ModelError("context", "The context is full.", usage=turn.usage, model=turn.model)
            return await self._failed(too_long, stop)
        await self._finished(turn)
        return None

    async def abandon(self) -> None:
        """The call was cancelled in the middle: charge what it must have cost."""
        if not self._streaming:
            return
        self._streaming = False
        state = self._record.state
        usage = Usage(input=state.last_size, output=int(self._heard / CHARACTERS_PER_TOKEN))
        await self._charge_failure("stopped", "", usage, self._model.name, again=False)

    async def _stream(self, go: Go) -> Turn:
        self._heard, self._streaming = 0, True
        live = {kind: self._mask.stream() for kind in ("text", "thinking", "call")}
        request = await self._context.request(self._record.state, go)
        spoken = asyncio.Event()
        telling = asyncio.create_task(self._tell_slow(spoken))
        try:
            turn = await self._listen(request, live, spoken)
        finally:
            spoken.set()
            await asyncio.wait({telling})
        self._streaming = False
        if turn is None:
            raise ModelError("retryable", "The model's answer had no end.", model=self._model.name)
        return turn

    async def _tell_slow(self, spoken: asyncio.Event) -> None:
        """People wonder where their answer is when a model takes minutes for its first word, as local ones may."""
        try:
            async with asyncio.timeout(SLOW_AFTER):
                await spoken.wait()
        except TimeoutError:
            # What keeps it from being written keeps the next event, too, which says so.
            with contextlib.suppress(Exception):
                await self._record(
                    "turn.slow", {"seconds": SLOW_AFTER}, self._record.state.rounds[-1].event_id
                )

    async def _listen(
        self, request: ModelRequest, live: Mapping[str, Masking], spoken: asyncio.Event
    ) -> Turn | None:
        turn: Turn | None = None
        async for event in self._model.stream(request):
            if isinstance(event, Delta):
                spoken.set()
                self._heard += len(event.text)
                self._record.listen(f"{event.kind}.delta", {"text": live[event.kind].feed(event.text)})
            elif isinstance(event, Attempted):
                await self._charge_failure("attempt", event.reason, event.usage, event.model, again=True)
            else:
                turn = event
        return turn

    async def _finished(self, turn: Turn) -> None:
        cost = self._limits.cost(turn.model, turn.usage)
        await self._limits.settle(self._record.state, cost, turn.model)
        known = {call.id for round_ in self._record.state.rounds for call in round_.calls}
        content, malformed = told_apart(turn.content, turn.malformed, known)
        data = {
            "turn": self._record.state.turns + 1,
            "content": sayable(content),
            "stop": turn.stop,
            "malformed": malformed,
            "cut_call": turn.cut_call,
            "usage": turn.usage.json(),
            "cost": cost,
            "model": turn.model,
            "message_id": turn.message_id,
            "diagnostics": turn.diagnostics,
            "detail": turn.detail,
        }
        await self._record("turn.finished", data, self._record.state.rounds[-1].event_id)

    async def _failed(self, error: ModelError, stop: Stop) -> Failed | None:
        self._streaming = False
        kind = "context" if self._may_be_too_long(error) else error.kind
        await self._charge_failure(kind, str(error), error.usage, error.model, again=False)
        if kind in ("context", "image") and await self._make_room(kind):
            return None
        if error.kind in ("context", "image", "invalid"):
            await stop(Halt(f"model.{error.kind}", f"{SENTENCES[error.kind]} ({error})"))
            return None
        return Failed(
            f"model.{error.kind}",
            f"{SENTENCES[error.kind]} ({error})",
            self._record.state.included_to,
            error.retry_after,
            waiting=error.kind in ("unavailable", "auth"),
        )

    def _may_be_too_long(self, error: ModelError) -> bool:
        """Whether a request was refused for a reason nobody knows, and is long: shortening it once may help."""
        state = self._record.state
        unknown = error.kind == "invalid" and error.status in (400, 422)
        return unknown and not state.refusals and state.last_size >= LONG_PROMPT

    async def _make_room(self, kind: str) -> bool:
        """Shorten once for a request that was refused; False when that was tried already or nothing can go."""
        if self._record.state.refusals > 1:
            return False
        if kind == "image":
            await self._record("context.cleared", {"call_ids": [], "images": True})
            return True
        points = await self._context.shrink(self._record.state, force=True)
        for point in points:
            await self._record(point.kind, point.data)
        return bool(points)

    async def _charge_failure(
        self, reason: str, detail: str, usage: Usage, model: str, *, again: bool
    ) -> None:
        cost = self._limits.cost(model, usage)
        if not again:
            await self._limits.settle(self._record.state, cost, model)
        data = {"reason": reason, "detail": detail, "usage": usage.json(), "cost": cost, "model": model}
        await self._record("turn.failed", {**data, "again": again}, self._record.state.rounds[-1].event_id)


def sayable(content: list[Block]) -> list[Block]:
    """An answer as it may be sent back: no empty text, and not thinking alone."""
    kept = [block for block in content if block["type"] != "text" or block["text"].strip()]
    thinking_only = all(block["type"] in ("thinking", "redacted_thinking") for block in kept)
    return [] if thinking_only else kept
