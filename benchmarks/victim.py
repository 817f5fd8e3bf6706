"""A worker that takes one job and never ends it, to be killed: URL FOLDER LEASE."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks import ours
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.worker import Run


async def main(url: str, folder: Path, lease: float) -> None:
    """Say when the job is in hand, then hold it."""

    async def hold(run: Run) -> Outcome:
        sys.stdout.write("held\n")
        sys.stdout.flush()
        await asyncio.sleep(3600)
        return Done()

    async with ours.platform(url, folder) as platform, ours.worker(platform, hold, lease=lease):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
