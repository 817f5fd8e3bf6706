"""After a sandbox has ended, nothing of it may be left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gofer_sandbox import Sandbox, processes
from support.patience import eventually

ASLEEP = "until grep -qs ^sleep /proc/$!/cmdline; do :; done"
"""A child is called bash until it has become something else."""


@asynccontextmanager
async def nothing_left(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """Start it, and see that its processes, groups and directories go with it."""
    await sandbox.start()
    try:
        yield sandbox
        await no_zombies(sandbox.record.reference.pid)
    finally:
        reference = sandbox.record.reference
        inside = [reference.pid, *processes.descendants(reference.pid)]
        started = {pid: processes.start_time(pid) for pid in inside}
        await sandbox.close()
    assert [pid for pid, start in started.items() if start and processes.start_time(pid) == start] == []
    assert not Path(reference.control).exists()
    assert not [place for place, _, _ in os.walk("/sys/fs/cgroup") if place.endswith(sandbox.id)]


async def no_zombies(keeper: int) -> None:
    """What has just ended may be a zombie for an instant, until its parent has looked."""
    await eventually(lambda: not zombies(keeper))


def zombies(keeper: int) -> list[int]:
    """Processes inside that have ended and that nobody reaped."""
    found = []
    for pid in processes.descendants(keeper):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(pid)
    return found
