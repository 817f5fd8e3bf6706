"""What a killed server started ends with it, or with the next start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, processes
from support.patience import eventually

SERVER = """
import asyncio, sys
from pathlib import Path
from gofer_sandbox import Bubblewrap, Sandbox
async def main(base, directory):
    sandbox = Sandbox(Bubblewrap(base=Path(base)), directory=directory, survives=False)
    await sandbox.start()
    await sandbox.run("sleep 4321 & (while :; do sleep 1; done) &")
    print(sandbox.record.reference.pid, flush=True)
    await sandbox.run("sleep 1000")
asyncio.run(main(*sys.argv[1:]))
"""
PROBING = """
import asyncio, os, sys
from pathlib import Path
from gofer_sandbox import Bubblewrap
from gofer_sandbox.bubblewrap import probe
probe._facts = lambda _: os.kill(os.getpid(), 9)
asyncio.run(Bubblewrap(base=Path(sys.argv[1])).probe())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="outlives-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def test_a_session_that_is_not_to_survive_ends_by_itself_in_the_middle_of_a_command(
    place: Path,
) -> None:
    base = place / "base"
    base.mkdir(mode=0o711)
    arguments = [sys.executable, "-c", SERVER, str(base), str(place / "session")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        keeper = int(server.stdout.readline())
        assert processes.start_time(keeper) is not None
        server.kill()
    await eventually(lambda: processes.start_time(keeper) is None)


async def test_what_a_server_left_that_died_while_it_probed_is_removed_by_the_next(place: Path) -> None:
    subprocess.run([sys.executable, "-c", PROBING, str(place)], check=False)
    [record] = (place / "probes").iterdir()
    await eventually(lambda: not _processes_of(place))
    await Bubblewrap(base=place).probe()
    assert not list((place / "probes").iterdir())
    assert not [group for group, _, _ in os.walk("/sys/fs/cgroup") if group.endswith(record.name)]


def _processes_of(place: Path) -> list[str]:
    return [line for pid in processes.descendants(1) if str(place) in (line := processes.command_line(pid))]
