"""Threat: what runs in a shell takes more of the host's disk than it is allowed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from gofer_sandbox import Bubblewrap, Limits, Sandbox
from gofer_sandbox.disk import free_space, measure
from gofer_sandbox.files.errors import NoSpace
from gofer_sandbox.limits import MIB
from support.patience import eventually, patience, patiently

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(disk=30 * MIB)
PYTHON = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python inside")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> Bubblewrap:
    return Bubblewrap()


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(provider: Bubblewrap) -> AsyncIterator[Sandbox]:
    async with Sandbox(provider, limits=LIMITS) as made:
        yield made


@pytest.mark.parametrize(
    "options", ["-n -l 6G", "-l 6G", "-z -n -l 6G", "-z -l 6G", "-i -o 0 -l 1G", "-l 25M"]
)
async def test_no_space_is_taken_without_writing(sandbox: Sandbox, options: str) -> None:
    """One call would take gigabytes within a millisecond, which no look is quick enough for."""
    result = await sandbox.run(f": >x; head -c 8192 /dev/zero >x; fallocate {options} x")
    assert result.exit_code == 1
    assert "unsupported" in result.output or "not supported" in result.output
    assert measure(sandbox.workspace).size < MIB


@PYTHON
async def test_programs_that_ask_for_space_ahead_get_it_by_writing(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "python3 -c \"import os; os.posix_fallocate(os.open('x', 65, 0o600), 0, 200_000)\"; stat -c %s x"
    )
    assert result.output == "200000\n"
    assert (await sandbox.run("fallocate -p -o 0 -l 4096 x; stat -c %s x")).output == "200000\n"


@PYTHON
async def test_no_other_name_of_that_call_works(sandbox: Sandbox) -> None:
    reserve = """
import fcntl, os, struct
with open("x", "wb") as file:
    for number in (0x40305828, 0x4030582A, 0x40305839):
        try:
            fcntl.ioctl(file, number, struct.pack("hhqqiI4i", 0, 0, 0, 6 << 30, 0, 0, 0, 0, 0, 0))
            print("taken")
        except OSError as error:
            print(os.strerror(error.errno))
"""
    await sandbox.write("reserve.py", reserve)
    assert (await sandbox.run("python3 reserve.py")).output == "Operation not supported\n" * 3


@PYTHON
async def test_a_file_cannot_be_moved_to_another_project(sandbox: Sandbox) -> None:
    """Or it would count for another quota, or for none."""
    change = """
import ctypes, errno, fcntl, os, struct
here = os.open(".", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
for number, data in ((0x401C5820, struct.pack("IIIII8x", 0, 0, 0, 7, 0)), (0x40086602, struct.pack("l", 0x20000000))):
    try:
        fcntl.ioctl(here, number, data)
        print("changed")
    except OSError as error:
        print(errno.errorcode[error.errno])
libc.syscall(469, here, b"", b"\\0" * 32, 32, 0x1000)
print(errno.errorcode[ctypes.get_errno()])
"""
    await sandbox.write("change.py", change)
    assert (await sandbox.run("python3 change.py")).output == "EPERM\n" * 3


async def test_a_command_shorter_than_the_first_look_is_looked_at_when_it_has_ended(
    provider: Bubblewrap,
) -> None:
    async with Sandbox(provider, limits=replace(LIMITS, disk=MIB)) as sandbox, patiently(20):
        notes = (await sandbox.run("A=kept; printf '%900000s' '' | tee f1 f2 f3 f4 >/dev/null")).notes
        while not notes:
            notes = (await sandbox.run("true")).notes
            await asyncio.sleep(0.02)
        assert "the workspace holds" in notes[0]
        assert (await sandbox.run("rm f*; sleep 0.2; echo $A")).output == "kept\n"


@PYTHON
async def test_a_file_that_only_a_mapping_holds_counts(sandbox: Sandbox) -> None:
    size = 4096 if os.geteuid() == 0 else 1 << 20  # the rest of it only root can see
    grow = f"""
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
while True:
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    os.write(file, bytes(1 << 20))
    libc.mmap(None, ctypes.c_size_t({size}), 1, 1, file, ctypes.c_long(0))
    os.close(file)
    time.sleep(0.01)
"""
    await sandbox.write("grow.py", grow)
    result = await sandbox.run("python3 grow.py", timeout=patience(30))
    assert not result.timed_out
    assert any("the workspace holds" in note for note in result.notes)


@PYTHON
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
async def test_a_file_that_only_a_queue_holds_counts(sandbox: Sandbox, kind: str) -> None:
    grow = f"""
import os, socket, time
kept = []
while True:
    one, other = socket.socketpair(socket.AF_UNIX, socket.{kind})
    for _ in range(3):
        file = os.open("x", os.O_RDWR | os.O_CREAT)
        os.unlink("x")
        os.write(file, bytes(1 << 20))
        socket.send_fds(one, [b"x"], [file])
        os.close(file)
    kept.append((one, other))
    time.sleep(0.01)
"""
    await sandbox.write("grow.py", grow)
    result = await sandbox.run("python3 grow.py", timeout=patience(30))
    assert not result.timed_out
    assert any("the workspace holds" in note for note in result.notes)


@PYTHON
async def test_looking_into_a_queue_takes_nothing_out_of_it(sandbox: Sandbox) -> None:
    script = """
import os, socket, time
one, other = socket.socketpair()
for text in (b"first", b"second"):
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    os.write(file, text)
    socket.send_fds(one, [text[:1]], [file])
time.sleep(0.5)
for _ in range(2):
    data, (file,), _, _ = socket.recv_fds(other, 10, 1)
    print(data.decode(), os.pread(file, 10, 0).decode())
"""
    await sandbox.write("queue.py", script)
    assert (await sandbox.run("python3 queue.py")).output == "f first\ns second\n"


async def test_the_servers_own_writes_count(sandbox: Sandbox) -> None:
    for number in range(3):
        await sandbox.write(f"f{number}", bytes(9 * MIB))
    with pytest.raises(NoSpace, match="may hold 31457280 bytes"):
        await sandbox.write("one too many", bytes(9 * MIB))
    await sandbox.run("rm f*")
    await sandbox.write("fits again", bytes(9 * MIB))


async def test_no_workspace_grows_while_the_machine_is_short_of_space() -> None:
    """Whatever its own limit is; what is there can still be deleted."""
    provider = Bubblewrap(reserve=free_space(Path("/tmp")) * 2)
    async with Sandbox(provider, limits=replace(LIMITS, disk=2048 * MIB)) as sandbox:
        result = await sandbox.run(
            "sleep 0.3; for n in {1..500}; do head -c 1M /dev/zero >f$n; sleep 0.01; done",
            timeout=patience(30),
        )
        assert result.exit_code != 0
        assert any("bytes of disk left" in note for note in result.notes)
        with pytest.raises(NoSpace, match="short of disk space"):
            await sandbox.write("large", bytes(9 * MIB))
        await sandbox.write("small", b"small")
        assert (await sandbox.run("rm f*; ls")).output == "small\n"


async def test_background_work_is_ended_while_the_machine_is_short_of_space() -> None:
    async with Sandbox(Bubblewrap(reserve=free_space(Path("/tmp")) * 2)) as sandbox:
        await sandbox.run("(while :; do head -c 1M /dev/zero >>f; sleep 0.01; done) &>/dev/null & sleep 0.2")
        await eventually(lambda: not (sandbox._session and sandbox._session.background))


async def test_the_report_says_what_holds_the_limit(provider: Bubblewrap, sandbox: Sandbox) -> None:
    report = await provider.probe()
    assert report.disk_by == sandbox.capabilities.disk_by
    assert "the disk limit is" in report.summary
    feature = next(one for one in report.features if one.name == "disk limit held by the file system")
    assert feature.ok is (report.disk_by == "project quota")
    assert feature.ok or (feature.detail and "prjquota" in feature.fix)
