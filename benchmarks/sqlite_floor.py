"""The least SQLite can do for a queue: one thread, one table, one commit for each claim and each end."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

PAYLOAD = "x" * 1000
CLAIM = (
    "UPDATE job SET state = 1, owner = 'w' WHERE id = (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT 1) "
    "RETURNING id, payload"
)
END = "UPDATE job SET state = 2 WHERE id = ? AND owner = 'w'"


def _open(folder: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{folder}/floor.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE job(id INTEGER PRIMARY KEY, state INT NOT NULL, owner TEXT, payload TEXT)"
    )
    connection.execute("CREATE INDEX job_ready ON job(id) WHERE state = 0")
    return connection


def drain(jobs: int) -> float:
    """Jobs per second."""
    with tempfile.TemporaryDirectory() as folder:
        connection = _open(folder)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO job(state, payload) VALUES(0, ?)", [(PAYLOAD,)] * jobs)
        connection.execute("COMMIT")
        began = time.perf_counter()
        for _ in range(jobs):
            ((job, _payload),) = connection.execute(CLAIM).fetchall()
            connection.execute(END, (job,))
        elapsed = time.perf_counter() - began
        connection.close()
        return jobs / elapsed


async def starts(samples: int) -> list[float]:
    """Milliseconds from the insert's call to the claimed row, through one thread and an event."""
    loop = asyncio.get_running_loop()
    woken, seen = asyncio.Event(), asyncio.Event()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        connection = _open(folder)

        def insert() -> None:
            connection.execute("INSERT INTO job(state, payload) VALUES(0, ?)", (PAYLOAD,))

        def claim() -> list[tuple[int, str]]:
            return connection.execute(CLAIM).fetchall()

        async def dispatch() -> None:
            while True:
                await woken.wait()
                woken.clear()
                await loop.run_in_executor(thread, claim)
                seen.set()

        dispatching = asyncio.create_task(dispatch())
        taken = []
        for _ in range(samples):
            await asyncio.sleep(random.uniform(0.005, 0.02))
            began = time.perf_counter()
            await loop.run_in_executor(thread, insert)
            woken.set()
            await seen.wait()
            seen.clear()
            taken.append((time.perf_counter() - began) * 1000)
        dispatching.cancel()
        connection.close()
    return taken
