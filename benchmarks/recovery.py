"""A killed process, and one with nothing to do: how soon its job is taken over, how little it costs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, select

from benchmarks import ours, postgres
from benchmarks.report import Row
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.worker import Run
from gofer.store.tables import attempts

GROUP = "recovery"
LEASE = 1.0


async def main(quick: bool) -> list[Row]:
    """Run them."""
    cycles = 2 if quick else 10
    async with postgres.server() as server:
        times = await _takeovers(await server.fresh(), cycles)
    rows = [
        Row(GROUP, "takeover after kill -9, slowest", max(times), "s", at_most=LEASE + 2, note="lease 1 s"),
        Row(GROUP, "finishes per killed job", 1.0, "times", at_least=1, at_most=1),
    ]
    rows.append(await _idle(5 if quick else 20))
    return rows


async def _takeovers(url: str, cycles: int) -> list[float]:
    """Seconds from a worker's death to the start of its job elsewhere."""
    times: list[float] = []
    async with ours.platform(url) as platform:
        for cycle in range(cycles):
            lane = f"k{cycle}"
            await platform.database.write(partial(ours.converse, vault=platform.vault, names=[lane]))
            await platform.database.write(partial(ours.one, conversation=lane))
            victim = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "benchmarks.victim",
                    url,
                    str(platform.settings.data_dir),
                    str(LEASE),
                ),
                stdout=subprocess.PIPE,
            )
            assert victim.stdout is not None
            if not await victim.stdout.readline():
                raise RuntimeError("the worker to be killed did not start")
            started = asyncio.Event()

            async def note(run: Run, started: asyncio.Event = started) -> Outcome:
                started.set()
                return Done()

            async with ours.worker(platform, note, lease=LEASE) as working:
                await asyncio.sleep(0.3)
                os.kill(victim.pid, signal.SIGKILL)
                began = time.perf_counter()
                await asyncio.wait_for(started.wait(), 30)
                times.append(time.perf_counter() - began)
                while working.running:
                    await asyncio.sleep(0.01)
            await victim.wait()
        await platform.database.read(partial(_ended_once, cycles=cycles))
    return times


def _ended_once(connection: Connection, cycles: int) -> None:
    outcomes = sorted(connection.execute(select(attempts.c.outcome)).scalars())
    if outcomes != ["done"] * cycles + ["lost"] * cycles:
        raise RuntimeError(f"every killed job should be lost once and done once, not {outcomes}")


async def _idle(seconds: float) -> Row:
    """The processor time of `gofer serve` when nothing happens."""
    with tempfile.TemporaryDirectory(prefix="gofer-idle-") as folder:
        environment = {**os.environ, "GOFER_DATA_DIR": folder, "GOFER_LOG_LEVEL": "error"}
        gofer = Path(sys.executable).parent / "gofer"
        process = await asyncio.create_subprocess_exec(
            str(gofer), "serve", "--port", "0", env=environment, stdout=subprocess.DEVNULL
        )
        try:
            while not (Path(folder) / "gofer.sock").exists():
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)  # starting is not idling
            before = _used(process.pid)
            await asyncio.sleep(seconds)
            used = _used(process.pid) - before
        finally:
            process.terminate()
            await process.wait()
    return Row(GROUP, "idle processor use of gofer serve", 100 * used / seconds, "% of a core", at_most=1)


def _used(pid: int) -> float:
    """Seconds of processor a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
