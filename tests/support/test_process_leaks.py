"""What a test run leaves running is found, whoever its parent is by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import process_leaks
from support.patience import until

KILLED = """
import os, signal, subprocess, process_leaks
process_leaks.mark()
process_leaks.mind()
print(subprocess.Popen(["bash", "--noprofile", "-c", "sleep 300; :"], start_new_session=True).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_started_and_left_is_found() -> None:
    orphan = "bash --noprofile -c 'sleep 300; :' >/dev/null & echo $!"
    started = subprocess.run(["bash", "-c", orphan], env={}, stdout=subprocess.PIPE, check=True)
    pid = int(started.stdout)
    assert pid in process_leaks.still_running()
    process_leaks.end([pid])
    until(lambda: pid not in process_leaks.still_running(), within=5)


def test_what_a_killed_run_has_started_is_ended() -> None:
    there = {**os.environ, "PYTHONPATH": str(Path(process_leaks.__file__).parent)}
    run = subprocess.run([sys.executable, "-c", KILLED], env=there, stdout=subprocess.PIPE)
    assert run.stdout
    place = Path("/proc", run.stdout.decode().strip(), "cmdline")
    until(lambda: not place.exists() or not place.read_bytes())
