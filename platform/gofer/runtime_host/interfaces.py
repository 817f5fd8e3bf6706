"""What the host, the platform and the adapters say to each other: orders, reports, and what an adapter does."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.errors import GoferError
from gofer.sanitize import clean

MAX_TEXT = 8 * 1024
"""Bytes of a text for an agent, after cleaning."""
MAX_SUMMARY = 32 * 1024
"""Bytes of a summary for a new session. An agent in a terminal gets it with the text, within MAX_TEXT."""
MAX_ANSWER = 32 * 1024
"""Bytes of an agent's answer that are passed on."""
MAX_SESSION = 200
PROBE = 40
"""Letters and digits of a text's beginning and end by which it is recognised on a screen."""
ORDER_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
"""An order's id stands in an address."""
OVER = "trigger.over"
ACK_WITHIN, ANSWER_WITHIN = 60.0, 3600.0
"""Seconds for an agent to show that it has begun, and to end its turn, where an order does not say."""


class Quiet(BaseModel):
    """How to keep out of the way of a person who types."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    quiet: float = Field(default=20, ge=0, le=3600)
    """Seconds without a key."""
    look_every: float = Field(default=5, gt=0, le=600)
    at_most: float = Field(default=60, ge=0, le=3600)
    """Seconds that a delivery is deferred."""
    then: Literal["deliver", "fail"] = "deliver"


class Order(BaseModel):
    """One thing that Gofer asks of a runtime: one hop of a Trigger."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(pattern=ORDER_ID)
    runtime: str = Field(max_length=100)
    action: Literal["deliver", "prompt", "resume", "spawn", "look"]
    text: str = Field(default="", max_length=4_000_000)
    summary: str = Field(default="", max_length=4_000_000)
    session: str = Field(default="", max_length=1000)
    force: bool = False
    """Do not look whether somebody types."""
    quiet: Quiet = Quiet()
    lease: float = Field(default=120, gt=0, le=3600)
    """Seconds after which Gofer wants to hear something, be it that it takes longer."""
    ack_within: float = Field(default=ACK_WITHIN, gt=0, le=24 * 3600)
    answer_within: float = Field(default=ANSWER_WITHIN, gt=0, le=7 * 24 * 3600)


Status = Literal["delivered", "deferred", "failed", "acknowledged", "answered", "unknown"]


class HostReport(BaseModel):
    """What became of an order."""

    model_config = ConfigDict(frozen=True)

    status: Status
    reason: str = ""
    """A code, such as `runtime.gone`; empty when all is well."""
    session: str = ""
    text: str = ""
    """What the agent answered."""


@dataclass(frozen=True, slots=True)
class RuntimeLook:
    """What an adapter sees when it looks at the real process."""

    alive: bool
    reason: str = ""
    """Why nothing can be delivered now; empty when it can."""
    program: str = ""
    session: str = ""
    idle: bool = False
    """It waits for somebody to say something."""
    detail: str = ""
    """The reason in words, for the host's user."""

    @property
    def state(self) -> Literal["live", "idle", "offline"]:
        """As the platform calls it."""
        if not self.alive:
            return "offline"
        return "idle" if self.idle else "live"


class NotDelivered(GoferError):
    """An order cannot be carried out, and nothing has reached the agent; `reason` is the code."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class Clock:
    """The time; tests have one of their own."""

    def now(self) -> float:
        """Seconds since 1970, as the machine believes."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class OrderRun:
    """An order on its way through an adapter, and what the adapter may ask of the host meanwhile."""

    order: Order
    begin: Callable[[], Awaitable[None]]
    """Write down that the agent is about to be reached. Must be awaited before the first byte goes to it."""
    report: Callable[[HostReport], Awaitable[None]]
    """Tell the platform something that is not the end."""
    ask: Callable[[str, list[str]], Awaitable[str | None]]
    """Ask people a question with choices; None when nobody answered."""
    forced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the order is forced meanwhile."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when Gofer wants nothing of the order any more: its Trigger was stopped, or has gone on."""
    clock: Clock = field(default_factory=Clock)

    def check(self) -> None:
        """Raises NotDelivered when the order is over: its agent is told nothing then."""
        if self.over.is_set():
            raise NotDelivered(OVER)


class Adapter(ABC):
    """One runtime of the host's file, over the real process."""

    kind: str
    can_resume: bool
    can_spawn: bool
    crashes: int = 0
    """How often its program has failed since the host came, and was not ended by somebody."""

    @abstractmethod
    async def open(self) -> None:
        """Find or start the process. Never raises for a process that is not there: `look` tells."""

    @abstractmethod
    async def look(self) -> RuntimeLook:
        """See how the process is, now."""

    @abstractmethod
    async def carry_out(self, run: OrderRun) -> HostReport:
        """Do what an order asks; raises NotDelivered when nothing reached the agent."""

    async def recover(self, tail: str) -> HostReport | None:
        """Finish what a host that died had begun, by how its text ends; None when it cannot be known."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Let go. What the user started stays; what the host started and cannot find again ends."""


def prepared(text: str, limit: int = MAX_TEXT) -> str:
    """A text that is text for whatever agent gets it: no control characters but tab and newline, no escape sequences,
    and no first character that an agent takes for a command (`/quit`, `!rm`). Raises NotDelivered when it is empty
    or too long."""
    if len(text) > 16 * limit:
        raise NotDelivered("text.too_long")
    cleaned = clean(text).strip()
    if not cleaned:
        raise NotDelivered("text.empty")
    if not cleaned[0].isalnum() and cleaned[0] != "[":
        cleaned = f"Gofer: {cleaned}"
    if len(cleaned.encode()) > limit:
        raise NotDelivered("text.too_long")
    return cleaned


def letters(text: str) -> str:
    """What remains of a text however a terminal wraps and frames it."""
    return "".join(filter(str.isalnum, text))


def tail_of(order: Order) -> str:
    """The end of an order's text, by which it is recognised on a screen."""
    return letters(order.text[-4 * PROBE :])[-PROBE:]


def cut(text: str, limit: int) -> str:
    """The beginning of a text, of at most so many bytes."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def words_of(order: Order) -> str:
    """What a new session is told: the summary of what went before, as far as it fits, and the text."""
    text = prepared(order.text)
    if order.action != "spawn" or not order.summary.strip():
        return text
    room = MAX_TEXT - len(text.encode()) - len("\n\n")
    summary = cut(clean(order.summary[:MAX_SUMMARY]).strip(), max(0, room - len("Gofer: ")))
    return prepared(f"{summary}\n\n{text}") if summary else text
