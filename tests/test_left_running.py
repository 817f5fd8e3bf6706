"""What a test run leaves running is found, whoever its parent is by then."""

from __future__ import annotations

import subprocess

import left_running


def test_what_was_started_and_left_is_found() -> None:
    orphan = "bash --noprofile -c 'sleep 300; :' >/dev/null & echo $!"
    started = subprocess.run(["bash", "-c", orphan], env={}, stdout=subprocess.PIPE, check=True)
    pid = int(started.stdout)
    assert pid in left_running.still_running(within=0.2)
    left_running.end([pid])
    assert pid not in left_running.still_running(within=5)
