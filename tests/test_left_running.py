"""What a test run leaves running is found, whoever its parent is by then."""

from __future__ import annotations

import os
import signal
import subprocess

import left_running


def test_what_was_started_and_left_is_found() -> None:
    orphan = "sleep 300 >/dev/null & echo $!"
    started = subprocess.run(["bash", "-c", orphan], env={}, stdout=subprocess.PIPE, check=True)
    pid = int(started.stdout)
    try:
        assert pid in left_running.still_running("sleep")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert 1 not in left_running.still_running("bash")
