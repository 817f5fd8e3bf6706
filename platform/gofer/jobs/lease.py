"""A run's own view of its lease: once the lease has run out, the run sends no request to a service.

The fence keeps a worker that was frozen past its lease out of the store. A service outside knows no fence: a request
that the worker was about to send would go out when it wakes, beside that of its successor. So the clock is checked in
the last instant before the bytes of a request are written.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from gofer.errors import Fenced

if TYPE_CHECKING:
    import httpx2

WRITES = ("send_request_headers.started", "send_request_body.started")

_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> float:
    """Seconds that also pass while the process or the whole machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Lease:
    """How long a run may be sure that it still has the job."""

    def __init__(self, asked_at: float, seconds: float) -> None:
        self._ends = asked_at + seconds

    def prolong(self, asked_at: float, seconds: float) -> None:
        """Extend it after a renewal; the time counts from the request."""
        self._ends = asked_at + seconds

    def check(self) -> None:
        """Raises Fenced when it has run out: somebody else may have the job."""
        if clock() >= self._ends:
            raise Fenced


current: ContextVar[Lease | None] = ContextVar("lease", default=None)
"""The lease of the run that this task belongs to; None outside of runs."""


async def only_while_held(request: httpx2.Request) -> None:
    """A hook for the shared HTTP client: it checks the run's lease before a request is written."""
    lease = current.get()
    if lease is None:
        return

    async def look(event: str, _: dict[str, Any]) -> None:
        if event.endswith(WRITES):
            lease.check()

    request.extensions = {**request.extensions, "trace": look}
