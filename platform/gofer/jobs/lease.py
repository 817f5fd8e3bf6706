"""A run's own view of its lease: once it has run out, no request may be sent to a service.

The fence keeps a worker that was frozen past its lease out of the store, but a service outside knows no fence: the
request such a worker was about to send when it froze would go out when it wakes, beside that of its successor. So
the clock is looked at in the last instant before the bytes of a request are written.
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
"""The lease of the run whose code this is, if it is a run's."""


async def only_while_held(request: httpx2.Request) -> None:
    """A hook for the shared client: a run's requests are written only under its lease."""
    lease = current.get()
    if lease is None:
        return

    async def look(event: str, _: dict[str, Any]) -> None:
        if event.endswith(WRITES):
            lease.check()

    request.extensions = {**request.extensions, "trace": look}
