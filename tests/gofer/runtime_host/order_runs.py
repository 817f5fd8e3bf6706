"""Orders on their way through an adapter, with a clock that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gofer.runtime_host.interfaces import Adapter, Clock, HostReport, NotDelivered, Order, OrderRun


class TestClock(Clock):
    """Time that passes only when somebody sleeps; the wall clock can be set apart."""

    __test__ = False

    def __init__(self, wall: float = 1_000_000_000.0) -> None:
        self.elapsed = 0.0
        self.wall = wall
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.wall + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds
        self.meanwhile()


@dataclass
class Carried:
    """What became of an order, and what was said on the way."""

    begun: int = 0
    reports: list[HostReport] = field(default_factory=list)
    questions: list[tuple[str, list[str]]] = field(default_factory=list)
    answer: str | None = None
    result: HostReport | None = None
    complaint: str = ""

    @property
    def outcome(self) -> tuple[str, str]:
        """Status and reason of the last report."""
        assert self.result is not None
        return self.result.status, self.result.reason


async def carry_out(
    adapter: Adapter,
    action: str = "deliver",
    *,
    answer: str | None = None,
    clock: Clock | None = None,
    on_begin: Callable[[], None] = lambda: None,
    over: asyncio.Event | None = None,
    **order: Any,
) -> Carried:
    """Have an adapter carry an order out, as the host does."""
    seen = Carried(answer=answer)

    async def begin() -> None:
        on_begin()
        seen.begun += 1

    async def report(report: HostReport) -> None:
        seen.reports.append(report)

    async def ask(text: str, choices: list[str]) -> str | None:
        seen.questions.append((text, choices))
        return seen.answer

    given = Order.model_validate(
        {"id": "1-1", "runtime": "coder", "action": action, "text": "Hello there", **order}
    )
    run = OrderRun(given, begin, report, ask, over=over or asyncio.Event(), clock=clock or Clock())
    try:
        seen.result = await adapter.carry_out(run)
    except NotDelivered as error:
        seen.result = HostReport(status="failed", reason=error.reason)
        seen.complaint = str(error)
    return seen
