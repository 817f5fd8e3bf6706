"""Sessions made ahead: adopted only where they fit, whole in every way afterwards, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, Limits, Record, Sandbox, processes, records
from gofer_sandbox.limits import MIB
from gofer_sandbox.network import Egress
from gofer_sandbox.reaper import reap
from gofer_sandbox.spares import PREFIX, Fit, Spares
from support.patience import eventually, patience, patiently


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="spares-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def spares(folder: Path) -> AsyncIterator[Spares]:
    made = Spares(Bubblewrap(), folder, 1, idle=lambda: True)
    made.start()
    await eventually(lambda: made.ready == 1)
    yield made
    await made.close()
    assert not list(folder.glob(f"{PREFIX}*"))


async def taken(spares: Spares, directory: Path) -> Sandbox:
    sandbox = await spares.take(directory)
    assert sandbox is not None
    return sandbox


@asynccontextmanager
async def closed(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def test_a_spare_becomes_the_session_of_a_new_directory(spares: Spares, folder: Path) -> None:
    async with closed(await taken(spares, folder / "one")) as sandbox:
        assert sandbox.workspace == folder / "one" / "workspace"
        result = await sandbox.run("A=1; echo hi >file; seq 40000")
        assert (folder / "one" / "workspace" / "file").read_text() == "hi\n"
        assert result.full_output == folder / "one" / "output" / f"{result.number}.out"
        assert sandbox.output(result.number, -6).data == b"40000\n"
        await sandbox.write("other", b"by the server")
        assert (await sandbox.run("cat other; echo $A; pwd")).output == "by the server1\n/workspace\n"
        await eventually(lambda: spares.ready == 1)  # the next is made
        assert list(folder.glob(f"{PREFIX}*"))
    assert (folder / "one" / "workspace" / "file").exists()


async def test_what_was_adopted_can_be_attached_to_and_made_again(spares: Spares, folder: Path) -> None:
    sandbox = await taken(spares, folder / "one")
    await sandbox.run("A=1; echo hi >file")
    assert await sandbox.snapshot()
    record = Record.from_json(sandbox.record.to_json())
    assert record.directory == str(folder / "one")
    assert not record.ephemeral
    assert records.get(Bubblewrap().base, sandbox.id) == replace(
        record, last_command=0, last_used=record.created, level=record.level
    )
    await sandbox.detach()
    attached = await Sandbox.attach(record, Bubblewrap())
    assert (await attached.run("echo $A; cat file")).output == "1\nhi\n"
    shell = attached.shell
    assert shell
    os.kill(record.reference.pid, signal.SIGKILL)
    # Until the kernel has come to it, the shell may run a command and report that `cat` was killed.
    await eventually(lambda: processes.start_time(shell.pid) is None)
    assert (await attached.run("cat file")).recreated
    assert (await attached.run("echo $A; cat file")).output == "1\nhi\n"
    await attached.close()


async def test_a_spare_is_adopted_only_where_it_fits(spares: Spares, folder: Path) -> None:
    assert await spares.take(folder / "a", limits=Limits(disk=30 * MIB)) is None
    assert await spares.take(folder / "a", environment={"A": "1"}) is None
    assert await spares.take(folder / "a", readonly=[folder]) is None
    assert await spares.take(folder / "a", gate=Egress(["example.org"])) is None
    (folder / "there").mkdir()
    assert await spares.take(folder / "there") is None
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(PREFIX)) == ["there"]


async def test_the_next_spare_is_made_for_what_was_wanted_last(folder: Path) -> None:
    gate = Egress(["example.org"])
    spares = Spares(Bubblewrap(), folder, 1, fit=Fit.of(environment={"A": "1"}), idle=lambda: True)
    spares.start()
    try:
        await eventually(lambda: spares.ready == 1)
        assert await spares.take(folder / "a", environment={"B": "2"}, gate=gate) is None
        await eventually(lambda: spares._complete())
        async with patiently(20):
            while (sandbox := await spares.take(folder / "b", environment={"B": "2"}, gate=gate)) is None:
                await asyncio.sleep(0.05)
        async with closed(sandbox):
            said = await sandbox.run(
                "echo $A$B; [ $https_proxy ] && : <>/dev/tcp/127.0.0.1/3128 && echo open"
            )
            assert said.output == "2\nopen\n"
            assert sandbox.record.environment == {"B": "2"}
    finally:
        await spares.close()


async def test_a_spare_that_died_is_not_given(spares: Spares, folder: Path) -> None:
    ((_, spare),) = spares._ready
    os.kill(spare.record.reference.pid, signal.SIGKILL)
    await eventually(lambda: not spare._alive().box.alive())
    assert await spares.take(folder / "a") is None
    assert not (folder / "a").exists()


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01])
async def test_a_start_that_is_cancelled_leaves_nothing(folder: Path, delay: float) -> None:
    provider = Bubblewrap()
    await provider.probe()
    sandbox = Sandbox(provider, directory=folder / "a")
    starting = asyncio.create_task(sandbox.start())
    await asyncio.sleep(delay)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not (provider.base / sandbox.id).exists()
    await eventually(lambda: sandbox.id not in _command_lines())


def _command_lines() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)


async def test_none_is_made_while_there_is_work(folder: Path) -> None:
    looked = 0

    def busy() -> bool:
        nonlocal looked
        looked += 1
        return False

    spares = Spares(Bubblewrap(), folder, 1, idle=busy)
    spares.start()
    await eventually(lambda: looked > 1)
    assert (spares.ready, list(folder.iterdir())) == (0, [])
    await spares.close()


_REAPER = """
import asyncio, sys
from gofer_sandbox import Bubblewrap, reap
print(asyncio.run(reap(Bubblewrap(), [], within=sys.argv[1])))
"""

_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gofer_sandbox import Bubblewrap
from gofer_sandbox.spares import Spares
async def main():
    spares = Spares(Bubblewrap(), Path(sys.argv[1]), 1, idle=lambda: True)
    spares.start()
    while not spares.ready:
        await asyncio.sleep(0.01)
    print(spares._ready[0][1].record.to_json(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_what_a_killed_server_left_is_found_and_ended_by_the_next(folder: Path) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _KILLED, str(folder)],
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    record = Record.from_json(killed.stdout)
    provider = Bubblewrap()
    assert records.get(provider.base, record.id) is not None
    never_finished = folder / f"{PREFIX}0"
    never_finished.mkdir()
    assert record.id in await reap(provider, [], within=folder)
    assert processes.start_time(record.reference.pid) != record.reference.start
    assert not Path(record.directory).exists()
    assert not Path(record.reference.control).exists()
    spares = Spares(provider, folder, 1, idle=lambda: True)
    spares.start()
    await eventually(lambda: spares.ready == 1)
    assert not never_finished.exists()
    await spares.close()


async def test_a_reaper_that_comes_by_amid_an_adoption_takes_nothing_for_gone(folder: Path) -> None:
    """The directory has moved and the record has not followed yet: only the lock says that it is not gone."""
    provider = Bubblewrap()
    await provider.probe()
    sandbox = Sandbox(provider, directory=folder / f"{PREFIX}1", ephemeral=True)
    await sandbox.start()
    with records.moving(provider.base):
        os.rename(folder / f"{PREFIX}1", folder / "moved")
        reaping = subprocess.Popen(
            [sys.executable, "-c", _REAPER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        await eventually(lambda: reaping.poll() is not None or _waits_for_lock(reaping.pid))
        os.rename(folder / "moved", folder / f"{PREFIX}1")
    await sandbox.adopt(folder / "moved", {}, None)
    said, _ = await asyncio.to_thread(reaping.communicate)
    assert said == "[]\n"
    assert (await sandbox.run("echo alive")).output == "alive\n"
    await sandbox.close()


def _waits_for_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line for line in lines)
