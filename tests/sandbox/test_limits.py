"""What happens to a session that takes too much: the excess ends, the session and its state do not."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gofer_sandbox import Bubblewrap, Limits, Sandbox, processes
from gofer_sandbox.limits import MIB
from sandbox.leftovers import nothing_left
from support.patience import eventually, patience

PYTHON = Path("/usr/bin/python3").exists()
SMALL = Limits(memory=256 * MIB, processes=48, tmp=16 * MIB, shm=8 * MIB, disk=30 * MIB, files=300)


@pytest.fixture(params=[True, False], ids=["cgroups", "rlimits"])
async def make(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    provider = Bubblewrap(use_cgroups=request.param)
    await provider.probe()

    def sandbox(**limits: Any) -> Sandbox:
        return Sandbox(provider, limits=replace(SMALL, **limits))

    return sandbox


async def test_a_fork_bomb_ends_and_leaves_the_session_its_state(make: Callable[..., Sandbox]) -> None:
    async with nothing_left(make()) as sandbox:
        await sandbox.run("A=kept; sleep 1111 &")
        bomb = await sandbox.run("b() { b | b & }; b; sleep 0.5; echo on", timeout=patience(5))
        after = await sandbox.run("unset -f b; echo $A; ls /workspace | cat", timeout=patience(10))
        assert after.output == "kept\n"
        told = [*bomb.notes, *after.notes]
        while (
            len(_inside(sandbox)) >= 10
        ):  # without cgroups it is seen when it has grown, and not while it waits to
            told += (await sandbox.run("sleep 0.2", timeout=patience(10))).notes
        if sandbox.capabilities.limits_by != "rlimits":
            assert any("too many processes" in note for note in told) or bomb.timed_out, told
        calm = await sandbox.run("for i in 1 2 3 4 5; do /bin/echo $i; done", timeout=patience(10))
        assert calm.output == "1\n2\n3\n4\n5\n"
        assert calm.background in ((), ("sleep 1111",))
        assert len(_inside(sandbox)) < 10


async def test_the_number_of_processes_is_limited(make: Callable[..., Sandbox]) -> None:
    async with make() as sandbox:
        await sandbox.run("for i in {1..100}; do sleep 50 & done 2>/dev/null", timeout=2)
        assert len(_inside(sandbox)) <= 50
        assert (await sandbox.run("echo alive", timeout=patience(10))).output == "alive\n"


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_a_memory_hog_is_ended_and_the_shell_is_not(make: Callable[..., Sandbox]) -> None:
    async with nothing_left(make()) as sandbox:
        await sandbox.run("A=kept")
        result = await sandbox.run(
            "python3 -c 'x = bytearray(700_000_000); print(len(x))'", timeout=patience(20)
        )
        assert result.exit_code not in (0, None)
        assert "700000000" not in result.output
        if sandbox.capabilities.limits_by != "rlimits":
            assert any("out of memory" in note for note in result.notes)
        assert (await sandbox.run("echo $A")).output == "kept\n"


async def test_a_workspace_does_not_grow_beyond_its_limit(make: Callable[..., Sandbox]) -> None:
    async with make() as sandbox:
        await sandbox.run("A=kept")
        fill = "n=0; while :; do head -c 2000000 /dev/zero >/workspace/f$n; n=$((n+1)); sleep 0.02; done"
        result = await sandbox.run(fill, timeout=patience(30))
        assert not result.timed_out
        assert any("the workspace holds" in note for note in result.notes)
        held = sum(path.stat().st_size for path in sandbox.workspace.iterdir())
        assert held < 300 * MIB
        assert (await sandbox.run("rm -f /workspace/*; echo $A")).output == "kept\n"
        assert (await sandbox.run("sleep 0.4; echo fits >/workspace/x; cat /workspace/x")).output == "fits\n"


async def test_files_without_a_name_count_while_they_are_open(make: Callable[..., Sandbox]) -> None:
    async with make() as sandbox:
        await sandbox.run("A=kept")
        grow = "while :; do head -c 2000000 /dev/zero >&5; sleep 0.02; done"
        result = await sandbox.run(f"exec 5>u; rm u; {grow}", timeout=patience(30))
        assert not result.timed_out
        assert any("the workspace holds" in note for note in result.notes)
        assert (await sandbox.run("exec 5>&-; sleep 0.4; echo $A")).output == "kept\n"
        await sandbox.run(f"(exec 5>v; rm v; {grow}) &>/dev/null &")
        await _background_gone(sandbox)
        result = await sandbox.run("echo $A")
        assert result.background == ()
        assert any("background" in note for note in result.notes)


async def test_the_disk_is_watched_from_attaching_on() -> None:
    provider = Bubblewrap()
    directory = Path(tempfile.mkdtemp(prefix="limits-"))
    directory.chmod(0o711)
    sandbox = Sandbox(provider, directory=directory, limits=SMALL)
    await sandbox.start()
    grow = "while :; do head -c 2000000 /dev/zero >>f; sleep 0.02; done"
    await sandbox.run(f"(until [ -e go ]; do sleep 0.05; done; {grow}) &>/dev/null &")
    record = sandbox.record
    await sandbox.detach()
    attached = await Sandbox.attach(record, provider)
    try:
        await attached.write("go", b"")
        await _background_gone(attached)
        result = await attached.run("echo on")
        assert result.background == ()
        assert any("background" in note for note in result.notes)
    finally:
        await attached.close()
        shutil.rmtree(directory)


async def test_a_workspace_does_not_hold_too_many_files(make: Callable[..., Sandbox]) -> None:
    async with make() as sandbox:
        fill = "mkdir hidden; for n in {1..400}; do : >hidden/f$n; done; chmod 0 hidden; sleep 60"
        result = await sandbox.run(fill, timeout=patience(20))
        assert not result.timed_out
        assert any("files" in note for note in result.notes)
        assert (await sandbox.run("chmod 700 hidden; rm -rf hidden; echo alive")).output == "alive\n"


async def test_a_workspace_does_not_grow_while_no_command_runs(make: Callable[..., Sandbox]) -> None:
    async with make() as sandbox:
        await sandbox.run("A=kept")
        await sandbox.run("(while :; do head -c 5M /dev/zero >>f$((++n % 20)); done) &>/dev/null &")
        await _background_gone(sandbox)
        result = await sandbox.run("echo $A; du -sm . | cut -f1")
        assert result.background == ()
        assert any("background" in note for note in result.notes)
        assert result.output.startswith("kept\n")


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_nothing_hides_in_a_deep_tree_and_it_goes_with_the_session(
    make: Callable[..., Sandbox],
) -> None:
    dig = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').write('x' * 40_000_000)"
    async with make(files=10_000) as sandbox:
        directory = sandbox.workspace.parent
        result = await sandbox.run(f'python3 -c "{dig}"; sleep 60', timeout=patience(20))
        assert not result.timed_out
        assert any("more than its" in note for note in result.notes)
    assert not directory.exists()


async def test_no_command_runs_longer_than_the_session_allows(make: Callable[..., Sandbox]) -> None:
    async with make(seconds=0.3) as sandbox:
        assert (await sandbox.run("sleep 60", timeout=60)).timed_out


async def test_processor_time_is_shared_out() -> None:
    async with Sandbox(limits=replace(SMALL, cpus=0.2)) as sandbox:
        if sandbox.capabilities.limits_by == "rlimits":
            pytest.skip("this machine has no cgroups for us; this half did not run")
        began = time.monotonic()
        await sandbox.run("while :; do :; done & while :; do :; done & sleep 1")
        used = [
            sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            for pid in processes.descendants(sandbox.record.reference.pid)
        ]
        assert sum(used) < 0.6 * (time.monotonic() - began) * processes.TICKS


async def test_output_of_any_size_takes_no_memory() -> None:
    async with Sandbox() as sandbox:
        await sandbox.run("yes | head -c 1000000 >/dev/null")
        before = _resident()
        result = await sandbox.run("yes | head -c 200000000", timeout=patience(60))
        assert result.kept + result.dropped == 200_000_000
        assert _resident() - before < 30 * MIB


@pytest.mark.skipif(not PYTHON, reason="needs the system's Python inside")
async def test_forged_frames_do_not_keep_the_server_from_its_other_sessions() -> None:
    """Each would have the server keep a large snapshot, or write the next shell's state."""
    flood = """
for f in 10 11 12; do [ -S /dev/fd/$f ] && python3 -c '
import os
state = b"\\0Ui/\\0O\\0T\\0L\\0A\\0F\\0V" + b"declare -- a=" * 300_000 + b"\\0E\\0"
while True: os.write(0, state + b"\\0X77 0 \\0D7 0 /\\0")
' <&$f; done
"""
    async with Sandbox() as sandbox, Sandbox() as other:
        run = asyncio.create_task(sandbox.run(flood, timeout=2))
        longest = 0.0
        while not run.done():
            began = time.monotonic()
            assert (await other.run("echo on")).output == "on\n"
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.01)
        assert longest < 1.0


def _inside(sandbox: Sandbox) -> list[int]:
    return list(processes.descendants(sandbox.record.reference.pid))


async def _background_gone(sandbox: Sandbox) -> None:
    """What was killed takes an instant to go, and a longer one on a busy machine."""
    await eventually(lambda: sandbox.record.background == () and len(_inside(sandbox)) == 1)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
