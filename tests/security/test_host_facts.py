"""Threat: what runs in a shell learns about the host, or changes a setting of its kernel."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gofer_sandbox import Bubblewrap, Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(Bubblewrap()) as made:
        yield made


async def test_how_the_host_was_started_cannot_be_read(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "cat /proc/cmdline /proc/1/root/proc/cmdline; umount /proc/cmdline 2>/dev/null || echo kept"
    )
    assert result.output == "kept\n"


async def test_no_setting_of_the_kernel_can_be_written(sandbox: Sandbox) -> None:
    """Not even those of the session's own namespaces, over which it is root: shmmax, msgmax, pid_max."""
    before = await sandbox.run("cat /proc/sys/kernel/shmmax")
    result = await sandbox.run("echo 4096 >/proc/sys/kernel/shmmax")
    assert "Read-only file system" in result.output
    assert (await sandbox.run("cat /proc/sys/kernel/shmmax")).output == before.output
    assert (await sandbox.run("find /proc/sys -type f -writable")).output == ""


async def test_programs_still_read_the_settings_they_need(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "cat /proc/sys/kernel/pid_max /proc/sys/net/core/somaxconn /proc/sys/kernel/hostname"
    )
    assert re.fullmatch(r"\d+\n\d+\nsandbox\n", result.output), result.output


async def test_the_mounts_name_no_place_of_the_host_but_the_workspace_and_the_control_files(
    sandbox: Sandbox,
) -> None:
    """The kernel shows what was mounted. All it may show are paths made of random ids."""
    result = await sandbox.run("cut -d' ' -f4,5 /proc/self/mountinfo")
    shown = dict(line.split()[::-1] for line in result.output.splitlines())
    assert re.fullmatch(r".*/[0-9a-f]{16}", shown["/run/s"])
    assert re.fullmatch(r".*/gofer-sandbox-\w+/workspace", shown["/workspace"])
