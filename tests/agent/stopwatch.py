"""How long something took, without the time in which other processes had the processor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

LOOK = 0.02


@dataclass
class Stopwatch:
    """Counts seconds; what the machine took from us is not ours, what our own loop was busy with is."""

    begun: float = field(default_factory=time.monotonic)
    lost: float = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun - self.lost

    async def watch(self) -> None:
        while True:
            wall, busy = time.monotonic(), time.process_time()
            await asyncio.sleep(LOOK)
            late = time.monotonic() - wall - LOOK
            self.lost += max(0.0, late - (time.process_time() - busy))


@contextlib.asynccontextmanager
async def stopwatch() -> AsyncIterator[Stopwatch]:
    """Runs until the end of the block."""
    watch = Stopwatch()
    watching = asyncio.create_task(watch.watch())
    try:
        yield watch
    finally:
        watching.cancel()
