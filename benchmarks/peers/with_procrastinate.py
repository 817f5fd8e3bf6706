# mypy: ignore-errors
"""Procrastinate, ten at a time, run in its own environment: URL JOBS SAMPLES."""

import asyncio
import json
import os
import random
import sys
import time

from procrastinate import App, PsycopgConnector

where, jobs, samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = App(connector=PsycopgConnector(conninfo=where))
ended, starts = 0, []


@app.task(name="nothing")
async def nothing(payload):
    global ended
    ended += 1


@app.task(name="note")
async def note(began):
    starts.append((time.perf_counter() - began) * 1000)


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for _ in range(jobs):
            await nothing.defer_async(payload="x" * 1000)
        began = time.perf_counter()
        working = asyncio.create_task(app.run_worker_async(concurrency=10, install_signal_handlers=False))
        while ended < jobs and time.perf_counter() - began < 250:
            await asyncio.sleep(0.005)
        drain = ended / (time.perf_counter() - began)
        await asyncio.sleep(0.5)
        for number in range(samples):
            await asyncio.sleep(random.uniform(0.005, 0.02))
            await note.defer_async(began=time.perf_counter())
            while len(starts) <= number:
                await asyncio.sleep(0.001)
        print(json.dumps({"drain": drain, "starts": starts}), flush=True)
        working.cancel()
        os._exit(0)


asyncio.run(main())
