"""What the loop works with, by what it can do.

A `Model` thinks (`gofer.agent.model`), a `Journal` remembers (`gofer.agent.journal`), an `Inbox` hears
(`gofer.agent.conversation`); here are the other three: the tools it acts with, the limits that bound it and the context
it thinks in. `gofer.runs.build` puts the real ones together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gofer.agent.limits import Go, Halt
from gofer.agent.model import Block, ModelRequest, Usage
from gofer.agent.state import Call, State
from gofer.tool import ToolResult

Status = Literal["ok", "error", "malformed", "refused", "unknown", "stopped"]


@dataclass(frozen=True, slots=True)
class Ran:
    """A call's result and what became of the call."""

    result: ToolResult
    status: Status
    retry_after: float | None = None
    """Seconds after which the call is to be made again, because its service asks us to wait."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the run lends to each of its calls."""

    narrowed: bool
    plan: list[dict[str, str]]
    seconds_left: float
    stopping: Callable[[], Awaitable[None]]
    on_output: Callable[[str, str], None]
    """Called with the call's id and a piece of output."""


class Tools(Protocol):
    """What a run may do. Contract: nothing here raises but for cancellation and a lost job."""

    def refusal(self, call: Call, *, narrowed: bool) -> Ran | None:
        """Why this call must not run at all; None when it may."""
        ...

    async def run(self, call: Call, around: Surroundings) -> Ran:
        """Run a call that was not refused."""
        ...

    async def recover(self, call: Call, around: Surroundings) -> Ran | None:
        """The true outcome of a call whose worker died, if it can be learnt."""
        ...

    async def pictures(self, result: ToolResult) -> list[Block]:
        """A result's images, as the journal keeps them."""
        ...

    def tier(self, call: Call) -> str:
        """How much harm the call's tool could do."""
        ...

    def parallel(self, call: Call) -> bool:
        """Whether the call may run beside its neighbours."""
        ...

    def polling(self, call: Call) -> bool:
        """Whether the call's tool is made to be called again and again."""
        ...


class Limits(Protocol):
    """What a run may use."""

    def check_start(self, state: State) -> Halt | None:
        """Why it may not even begin."""
        ...

    async def before_turn(
        self, state: State, size: int, *, awaited: bool = False, ending: Halt | None = None
    ) -> Go | Halt:
        """Whether the next call of the model may be made; what it can cost at most is set aside then. With `ending`
        it is the last one in any case."""
        ...

    def cost(self, model: str, usage: Usage) -> int:
        """What a call of the model has cost."""
        ...

    async def settle(self, state: State, cost: int, model: str) -> None:
        """Put what the call has cost in the place of what was set aside."""
        ...

    def time_left(self, state: State) -> float:
        """Seconds of working time."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """A declared point at which the prompt's prefix changes, to be journaled."""

    kind: str
    data: dict[str, Any]


class Context(Protocol):
    """What the model gets to see."""

    async def start(self, to: int) -> tuple[int, int]:
        """Where the history of a new run begins (exclusive) and ends."""
        ...

    async def tainted(self, state: State) -> bool:
        """Whether strangers' words are in that history."""
        ...

    async def shrink(self, state: State, *, force: bool = False) -> list[Point]:
        """What to leave out from now on; nothing most of the time. With `force` something must go."""
        ...

    def clear(self, state: State) -> list[Point]:
        """Leave out everything that tools have returned; nothing when that is done."""
        ...

    async def size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """Input tokens of the next request with these blocks at its end, by the best estimate there is."""
        ...

    async def worst_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The most that request may have, which is what has to be paid for."""
        ...

    async def raw_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The estimate from the blocks alone, to compare with the next one."""
        ...

    async def request(self, state: State, go: Go) -> ModelRequest:
        """The request itself."""
        ...
