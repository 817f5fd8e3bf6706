"""What is lent to a job ends with it, whatever became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gofer.integration import Job

PATIENCE = 10.0
"""Seconds that a process which ends waits for what still has to be given back."""


class Lending:
    """Makes the Job that integrations see, and ends it."""

    def __init__(self) -> None:
        self._endings: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def job(self) -> AsyncIterator[Job]:
        """One job, for as long as the block lasts. Its answer waits for the end of what it was lent."""
        job, stopped = Job(), False
        try:
            yield job
        except asyncio.CancelledError:
            # Whoever stops a run does not wait for other people's servers; `close` does.
            stopped = True
            raise
        finally:
            ending = self._end(job)
            if not stopped:
                await asyncio.shield(ending)

    def _end(self, job: Job) -> asyncio.Task[None]:
        ending = asyncio.create_task(job.end(), name="job-end")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def close(self) -> None:
        """Wait for what is being given back."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=PATIENCE)
