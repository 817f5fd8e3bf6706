"""The least PostgreSQL can do for a queue: asyncpg, one small table, a commit for each claim and each end."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import asyncpg

PAYLOAD = "x" * 1000
TABLE = """
    CREATE TABLE job(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0, owner text,
        payload text);
    CREATE INDEX job_ready ON job(id) WHERE state = 0;
"""
CLAIM = """
    WITH picked AS MATERIALIZED (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    UPDATE job SET state = 1, owner = 'w' FROM picked WHERE job.id = picked.id RETURNING job.id, job.payload
"""
END = "UPDATE job SET state = 2 WHERE id = $1 AND owner = 'w'"


async def drain(url: str, jobs: int, connections: int = 8) -> float:
    """Jobs per second over several connections, one job at a time each."""
    first = await asyncpg.connect(url)
    await first.execute(TABLE)
    await first.execute("INSERT INTO job(payload) SELECT $1 FROM generate_series(1, $2)", PAYLOAD, jobs)
    opened = [first, *[await asyncpg.connect(url) for _ in range(connections - 1)]]
    began = time.perf_counter()
    await asyncio.gather(*(_work(connection) for connection in opened))
    elapsed = time.perf_counter() - began
    for connection in opened:
        await connection.close()
    return jobs / elapsed


async def _work(connection: Any) -> None:
    while (row := await connection.fetchrow(CLAIM)) is not None:
        await connection.execute(END, row["id"])


async def starts(url: str, samples: int) -> list[float]:
    """Milliseconds from the insert's call to the claimed row, woken by NOTIFY."""
    producing, listening, claiming = [await asyncpg.connect(url) for _ in range(3)]
    woken = asyncio.Event()
    await listening.add_listener("floor", lambda *_: woken.set())
    taken = []
    for _ in range(samples):
        await asyncio.sleep(random.uniform(0.005, 0.02))
        began = time.perf_counter()
        insert = "WITH made AS (INSERT INTO job(payload) VALUES($1)) SELECT pg_notify('floor', '')"
        inserting = asyncio.create_task(producing.execute(insert, PAYLOAD))
        await woken.wait()
        woken.clear()
        await claiming.fetchrow(CLAIM)
        taken.append((time.perf_counter() - began) * 1000)
        await inserting
    for connection in (producing, listening, claiming):
        await connection.close()
    return taken
