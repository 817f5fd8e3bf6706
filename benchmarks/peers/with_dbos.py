# mypy: ignore-errors
"""DBOS on SQLite or Postgres, run in its own environment: URL JOBS SAMPLES."""

import json
import os
import random
import sys
import threading
import time

from dbos import DBOS

where, jobs, samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ended, began = 0, 0.0
all_done = threading.Event()
starts = []
counting = threading.Lock()

DBOS(config={"name": "bench", "system_database_url": where, "log_level": "ERROR"})


@DBOS.workflow()
def nothing(payload):
    global ended, began
    with counting:
        began = began or time.perf_counter()
        ended += 1
    if ended == jobs:
        all_done.set()


@DBOS.workflow()
def note(began):
    starts.append((time.perf_counter() - began) * 1000)


DBOS.launch()
DBOS.register_queue("idle", worker_concurrency=16, polling_interval_sec=0.01)
for number in range(samples):
    time.sleep(random.uniform(0.005, 0.02))
    DBOS.enqueue_workflow("idle", note, time.perf_counter())
    while len(starts) <= number:
        time.sleep(0.001)
for _ in range(jobs):
    DBOS.enqueue_workflow("load", nothing, "x" * 1000)
DBOS.register_queue("load", worker_concurrency=16, polling_interval_sec=0.01)
all_done.wait(250)
print(json.dumps({"drain": ended / (time.perf_counter() - began), "starts": starts}), flush=True)
os._exit(0)
