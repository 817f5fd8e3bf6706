# mypy: ignore-errors
"""PgQueuer, batches of ten, run in its own environment: URL JOBS SAMPLES."""

import asyncio
import json
import os
import random
import sys
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

where, jobs, samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


async def main():
    producing = Queries(AsyncpgDriver(await asyncpg.connect(where)))
    await producing.install()
    ended, starts, all_done = 0, [], asyncio.Event()
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(where)))

    @queuer.entrypoint("nothing")
    async def nothing(job):
        nonlocal ended
        ended += 1
        if ended == jobs:
            all_done.set()

    @queuer.entrypoint("note")
    async def note(job):
        starts.append((time.perf_counter() - float(job.payload)) * 1000)

    for _ in range(jobs):
        await producing.enqueue("nothing", b"x" * 1000)
    began = time.perf_counter()
    working = asyncio.create_task(queuer.run(batch_size=10))
    await asyncio.wait_for(all_done.wait(), 250)
    drain = ended / (time.perf_counter() - began)
    await asyncio.sleep(0.5)
    for number in range(samples):
        await asyncio.sleep(random.uniform(0.005, 0.02))
        await producing.enqueue("note", str(time.perf_counter()).encode())
        while len(starts) <= number:
            await asyncio.sleep(0.001)
    print(json.dumps({"drain": drain, "starts": starts}), flush=True)
    working.cancel()
    os._exit(0)


asyncio.run(main())
