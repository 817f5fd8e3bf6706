"""Shells and servers are killed at random: state may be lost, but never without a word."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, Record, Result, Sandbox

SERVER = """
import asyncio, sys
from pathlib import Path
from gofer_sandbox import Bubblewrap, Record, Sandbox
async def main(base, record, command):
    sandbox = await Sandbox.restore(Record.from_json(record), Bubblewrap(base=Path(base)))
    result = await sandbox.run(command)
    print(int(bool(result.state_lost or result.recreated or result.notes)), result.output.strip(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main(*sys.argv[1:]))
"""


CHANGES = [
    "A={0}", "B[{0}%5]={0}", "f() {{ echo {0}; }}", "alias a=b{0}", "set -- {0} 'and more'", "umask 0{1}",
    "cd /proc/{1}", "set -u", "set +u", "trap 'echo {0}' USR1", "trap - USR1", "pushd /usr", "dirs -c",
    "enable -n let", "enable let", "exec 7</dev/null", "exec 7<&-",
]  # fmt: skip
"""What a command may do to the shell's state."""
LOOK = (
    'echo "${A-} ${B[*]-} $* $PWD ${DIRSTACK[1]-}" $- '
    "$(exec 2>/dev/null; umask; f; alias a; trap -p USR1; enable -n; [ ! -e /dev/fd/7 ] || echo 7)"
)


def change(chance: random.Random, number: int) -> str:
    """One of them, quietly."""
    text = chance.choice(CHANGES).format(number, chance.choice([1, 2, 7]))
    return f"{text} >/dev/null 2>&1" if not text.startswith("exec") else text


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="untold-", dir="/dev/shm"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize(
    ("operations", "seed"),
    [(60, 1), pytest.param(5000, 2, marks=pytest.mark.chaos)],
)
async def test_no_loss_is_untold(place: Path, operations: int, seed: int) -> None:
    chance, provider = random.Random(seed), Bubblewrap(base=place)
    sandbox = Sandbox(provider, directory=place / "session")
    await sandbox.start()
    value, told, untold = (await sandbox.run(LOOK)).output.strip(), False, []

    def hear(result: Result) -> None:
        nonlocal told
        told = told or result.state_lost or result.recreated or bool(result.notes)

    for number in range(operations):
        operation = chance.choices(
            ["set", "exit", "kill", "kill between", "crash", "crash after a kill", "server"],
            [8, 3, 3, 3, 1, 1, 0.2],
        )[0]
        shell = sandbox.shell
        if operation == "set":
            changed = await sandbox.run(f"{change(chance, number)}; {LOOK}")
            hear(changed)
            value = changed.output.strip()
        elif operation == "exit":
            changed = await sandbox.run(f"{change(chance, number)}; {LOOK}; exit 3")
            hear(changed)
            value = changed.output.strip()
        elif operation == "kill":
            hear(await sandbox.run("kill -9 $$"))
        elif shell and operation.startswith(("kill", "crash after")):
            os.kill(shell.pid, signal.SIGKILL)
            await asyncio.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
        if operation.startswith("crash"):
            sandbox = await _another_server(sandbox, provider)
        elif operation == "server":
            record = sandbox.record
            await sandbox.detach()
            command = f"{change(chance, number)}; {LOOK}"
            said, output = await asyncio.to_thread(_killed_server, place, record, command)
            told, value = told or said, output
            sandbox = await Sandbox.restore(record, provider)
        result = await sandbox.run(LOOK)
        hear(result)
        found = result.output.strip()
        if found != value and not told:
            untold.append((number, operation, value, found))
        value, told = found, False
    await sandbox.close()
    assert untold == []


async def _another_server(sandbox: Sandbox, provider: Bubblewrap) -> Sandbox:
    """One that knows what the journal and the channel say, and nothing else."""
    record = sandbox.record
    session = sandbox._alive()
    session.shell.snapshots._saving = None  # what was to be saved later is not
    await sandbox.detach()
    return await Sandbox.restore(record, provider)


def _killed_server(base: Path, record: Record, command: str) -> tuple[bool, str]:
    arguments = [sys.executable, "-c", SERVER, str(base), record.to_json(), command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        told, _, output = server.stdout.readline().strip().partition(" ")
        server.kill()
    return told == "1", output
