"""How long a test waits: seconds on an idle machine, and more of them the busier this machine is.

The only place that measures how slow the machine is. A test gives the seconds that would be plenty on an idle one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LOAD = Path("/proc/loadavg")


def slowness() -> float:
    """Processes per core that want to run, now or on average over the last minute, whichever is more; at least 1."""
    if not LOAD.exists():
        return max(1.0, os.getloadavg()[0] / CORES)
    average, _, _, processes, _ = LOAD.read_text().split()
    return max(1.0, float(average) / CORES, int(processes.partition("/")[0]) / CORES)


def patience(seconds: float) -> float:
    """So many seconds of an idle machine, as seconds of this one now."""
    return seconds * slowness()


class Deadline:
    """So many seconds of an idle machine from now. It moves when the machine gets busier meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._slowness = slowness()

    @property
    def left(self) -> float:
        """Seconds left; negative once it has passed."""
        left = self._began + self._seconds * self._slowness - time.monotonic()
        if left <= 0 and (now := slowness()) > self._slowness:
            self._slowness = now
            return self.left
        return left


@contextlib.asynccontextmanager
async def patiently(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout` with a deadline that moves."""
    deadline = Deadline(seconds)
    async with asyncio.timeout(None) as limit:
        looking = asyncio.create_task(_end(limit, deadline))
        try:
            yield
        finally:
            looking.cancel()


async def _end(limit: asyncio.Timeout, deadline: Deadline) -> None:
    while (left := deadline.left) > 0:
        await asyncio.sleep(left)
    limit.reschedule(asyncio.get_running_loop().time())


async def eventually(condition: Callable[[], Any], within: float = 60) -> Any:
    """Wait until a condition (async or not) holds; fails after a while. Never assert how long it took."""
    began = time.monotonic()
    async with patiently(within):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(_pause(began))


def until(condition: Callable[[], Any], within: float = 60) -> Any:
    """The same without a loop."""
    began, deadline = time.monotonic(), Deadline(within)
    while True:
        late = deadline.left <= 0
        if value := condition():
            return value
        if late:
            raise AssertionError("It did not happen.")
        time.sleep(_pause(began))


def _pause(began: float) -> float:
    """Until the next look: the longer it takes, the seldomer, since looking takes time from what is waited for."""
    return min(0.2, max(0.01, (time.monotonic() - began) / 8))
