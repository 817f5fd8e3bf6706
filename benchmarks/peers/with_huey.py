# mypy: ignore-errors
"""Huey on SQLite, run in its own environment: FILE JOBS SAMPLES."""

import json
import logging
import os
import random
import sys
import threading
import time

from huey import SqliteHuey

where, jobs, samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
logging.disable(logging.CRITICAL)
huey = SqliteHuey("bench", filename=where, results=False)
ended = 0
all_done = threading.Event()
starts = []
counting = threading.Lock()


@huey.task()
def nothing(payload):
    global ended
    with counting:
        ended += 1
    if ended == jobs:
        all_done.set()


@huey.task()
def note(began):
    starts.append((time.perf_counter() - began) * 1000)


def consumer(threads):
    return huey.create_consumer(workers=threads, periodic=False, initial_delay=0.01, max_delay=0.01)


for _ in range(jobs):
    nothing("x" * 1000)
working = consumer(1)  # more threads are slower on SQLite
began = time.perf_counter()
working.start()
all_done.wait(250)
drain = ended / (time.perf_counter() - began)
time.sleep(0.2)
for number in range(samples):
    time.sleep(random.uniform(0.005, 0.02))
    note(time.perf_counter())
    while len(starts) <= number:
        time.sleep(0.001)
print(json.dumps({"drain": drain, "starts": starts}), flush=True)
os._exit(0)
