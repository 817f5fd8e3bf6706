"""What a test run leaves running is found, whoever its parent is by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import left_running
from support.patience import patience, until

KILLED = """
import os, signal, subprocess, left_running
left_running.mark()
left_running.mind()
print(subprocess.Popen(["bash", "--noprofile", "-c", "sleep 300; :"], start_new_session=True).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_started_and_left_is_found() -> None:
    orphan = "bash --noprofile -c 'sleep 300; :' >/dev/null & echo $!"
    started = subprocess.run(["bash", "-c", orphan], env={}, stdout=subprocess.PIPE, check=True)
    pid = int(started.stdout)
    assert pid in left_running.still_running(within=0.2)
    left_running.end([pid])
    assert pid not in left_running.still_running(within=patience(5))


def test_what_a_killed_run_has_started_is_ended() -> None:
    there = {**os.environ, "PYTHONPATH": str(Path(left_running.__file__).parent)}
    run = subprocess.run([sys.executable, "-c", KILLED], env=there, stdout=subprocess.PIPE)
    assert run.stdout
    place = Path("/proc", run.stdout.decode().strip(), "cmdline")
    until(lambda: not place.exists() or not place.read_bytes())
