"""The protocols that the loop works with.

`Model` is in `gofer.agent.model`, `Journal` in `gofer.agent.journal`, `Inbox` in `gofer.agent.conversation`. Here are
the other three: the tools, the limits and the context. `gofer.runs.build` puts the real ones together.
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
    """Seconds after which to make the call again, because its service asks us to wait."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What each tool call gets from its run."""

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
        """The true outcome of a call whose worker died, if anybody knows it."""
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
        """Why the run may not begin; None when it may."""
        ...

    async def before_turn(
        self, state: State, size: int, *, awaited: bool = False, ending: Halt | None = None
    ) -> Go | Halt:
        """Whether the next model call may be made. If so, the most it can cost is set aside. With `ending` it is the
        last call in any case."""
        ...

    def cost(self, model: str, usage: Usage) -> int:
        """What a call of the model has cost."""
        ...

    async def settle(self, state: State, cost: int, model: str) -> None:
        """Replace the money set aside for the call by what it has cost."""
        ...

    def money_left(self, state: State) -> int | None:
        """Millionths of a dollar that the job may still cost; None for no bound."""
        ...

    def time_left(self, state: State) -> float:
        """Seconds of working time that are left."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """A point at which the beginning of the prompt changes; it is journaled."""

    kind: str
    data: dict[str, Any]


class Context(Protocol):
    """What the model sees."""

    async def start(self, to: int) -> tuple[int, int]:
        """Where the history of a new run begins (exclusive) and ends."""
        ...

    async def tainted(self, state: State) -> bool:
        """Whether strangers' words are in that history."""
        ...

    async def shrink(self, state: State, *, force: bool = False) -> list[Point]:
        """What to leave out of the prompt from now on; usually nothing. With `force` something must go."""
        ...

    def clear(self, state: State) -> list[Point]:
        """Leave the results of tools out of the prompt; nothing when that was done already."""
        ...

    async def fullness(self, state: State) -> float:
        """How much of its room the history of the next run will take."""
        ...

    async def size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The estimated input tokens of the next request, with these blocks at its end."""
        ...

    async def worst_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The most input tokens that the request can have. Limits count with this figure."""
        ...

    async def raw_size(self, state: State, extra: Sequence[Block] = ()) -> int:
        """The estimate from the blocks alone, to compare with the next one."""
        ...

    async def request(self, state: State, go: Go) -> ModelRequest:
        """The request itself."""
        ...
