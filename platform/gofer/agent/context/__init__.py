"""What a model gets to see: a provider says what to consider, a compressor makes it fit, an assembler builds the
request.

The prompt only ever grows at its end, so that providers' caches work, except at declared points: the events
`context.cleared` and `context.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gofer.agent.context.sizes import block_extra, block_size, estimate, result_extra, run_size
from gofer.agent.conversation import ConversationMessage, Summary
from gofer.agent.interfaces import Point
from gofer.agent.limits import Go
from gofer.agent.model import Block, ModelMessage, ModelRequest
from gofer.agent.state import State
from gofer.agent.transcript import merge, transcript


class ContextProvider(Protocol):
    """What came before the run."""

    async def start(self, to: int) -> tuple[int, int]:
        """Where the history of a new run begins (exclusive) and ends."""
        ...

    async def history(self, state: State) -> Sequence[ConversationMessage]:
        """The messages before the run that it may see."""
        ...

    async def summary(self, state: State) -> Summary | None:
        """What is kept of everything before those: by this run, or by an earlier one."""
        ...

    async def opening(self, state: State) -> list[ModelMessage]:
        """The same as messages for the model, with the summary before them."""
        ...

    async def tainted(self, state: State) -> bool:
        """Whether strangers' words are in it."""
        ...


class Compressor(Protocol):
    """Makes it fit."""

    async def shrink(
        self,
        state: State,
        before: Summary | None,
        history: Sequence[ConversationMessage],
        size: int,
        *,
        force: bool,
    ) -> list[Point]:
        """What to leave out now; nothing most of the time. With `force` something must go.

        A new summary takes the place of the one before, so it has to hold that, too.
        """
        ...


class Assembler(Protocol):
    """Builds requests."""

    async def request(self, state: State, messages: list[ModelMessage], go: Go) -> ModelRequest: ...

    def overhead(self) -> int:
        """Estimated tokens of what is in every request."""
        ...


@dataclass(slots=True)
class WholeContext:
    """The three together: the `Context` that the loop uses."""

    provider: ContextProvider
    compressor: Compressor
    assembler: Assembler

    async def start(self, to: int) -> tuple[int, int]:
        return await self.provider.start(to)

    async def tainted(self, state: State) -> bool:
        return await self.provider.tainted(state)

    async def size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """Estimated input tokens of the next request, leaning on what the provider counted last time."""
        raw = await self.raw_size(state, extra)
        if state.last_input and state.last_size:
            return max(1, state.last_input + max(0, raw - state.last_size))
        return raw

    async def worst_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The most the next request may have. What the provider has counted is known; what is new may be dense."""
        rounds = state.rounds[-1:] if state.last_input else state.rounds[state.kept_from :]
        new = sum(block_extra(block) for block in extra)
        new += sum(result_extra(call, state) for round_ in rounds for call in round_.calls)
        new += sum(block_extra(block) for round_ in rounds for block in round_.answer or ())
        if not state.last_input:
            new += sum(block_extra(block) for round_ in rounds for block in round_.input)
            opening = await self.provider.opening(state)
            new += sum(block_extra(block) for message in opening for block in message["content"])
        return await self.size(state, extra) + new

    async def raw_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The estimate alone, to compare with the next one."""
        added = sum(block_size(block) for block in extra)
        before = estimate(await self.provider.opening(state))
        return before + run_size(state) + added + self.assembler.overhead()

    async def shrink(self, state: State, *, force: bool = False) -> list[Point]:
        before, history = await self.provider.summary(state), await self.provider.history(state)
        return await self.compressor.shrink(state, before, history, await self.size(state), force=force)

    async def request(self, state: State, go: Go) -> ModelRequest:
        return await self.assembler.request(state, merge(await self._messages(state)), go)

    async def _messages(self, state: State) -> list[ModelMessage]:
        return [*await self.provider.opening(state), *transcript(state)]
