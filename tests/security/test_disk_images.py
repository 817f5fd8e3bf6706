"""Threat: what runs in a shell takes more disk than it is allowed; here each has a file system of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer_sandbox import Bubblewrap, Limits, Record, Sandbox, records
from gofer_sandbox.bubblewrap import disk_limit
from gofer_sandbox.limits import MIB
from gofer_sandbox.provider import IMAGE
from gofer_sandbox.spares import Fit, Spares
from support.patience import eventually

LIMITS = Limits(disk=30 * MIB, files=2000)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="images-"))
    path.chmod(0o755)
    if why := disk_limit.image_shortfall(path):
        pytest.skip(f"no images can be mounted here; this half did not run: {why}")
    yield path
    assert str(path) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(path)


async def provider_at(folder: Path) -> Bubblewrap:
    provider = Bubblewrap(images=True, workspaces=folder)
    if (await provider.probe()).disk_by != IMAGE:
        pytest.skip("project quotas hold the limit here; this half did not run")
    return provider


async def test_the_file_system_itself_holds_the_limit(folder: Path) -> None:
    async with Sandbox(await provider_at(folder), directory=folder / "one", limits=LIMITS) as sandbox:
        assert sandbox.capabilities.disk_by == IMAGE
        assert (await sandbox.run("ls -A")).output == ""
        result = await sandbox.run("for n in 1 2 3; do head -c 2M /dev/zero >>x; sleep 0.2; done")
        assert (result.exit_code, result.notes) == (
            0,
            (),
        )  # what is left of the image is not what the machine has
        result = await sandbox.run(": >x; : >y; fallocate -n -l 20M x && fallocate -n -l 6G y")
        assert result.output == "fallocate: fallocate failed: No space left on device\n"
        result = await sandbox.run("rm *; head -c 100M /dev/zero >a; head -c 100M /dev/zero >b")
        assert "No space left on device" in result.output
        held = os.stat(folder / "one" / disk_limit.NAME).st_blocks * 512
        assert held < LIMITS.disk + 16 * MIB
        result = await sandbox.run("rm *; for n in {1..9000}; do : >f$n || break; done 2>&1 | tail -1")
        assert "No space left on device" in result.output
        assert (await sandbox.run("rm f*; cut -d' ' -f4,5 /proc/self/mountinfo | grep workspace")).output == (
            "/ /workspace\n"  # nor does it say where on the host it is
        )


async def test_files_are_there_again_when_the_session_is_brought_back(folder: Path) -> None:
    provider = await provider_at(folder)
    sandbox = Sandbox(provider, directory=folder / "one", limits=LIMITS)
    await sandbox.start()
    await sandbox.run("echo kept >file")
    record = Record.from_json(sandbox.record.to_json())
    await sandbox.close()
    assert not list((folder / "one" / "workspace").iterdir())
    again = await Sandbox.restore(record, Bubblewrap(workspaces=folder))
    assert (await again.run("cat file")).output == "kept\n"
    await again.detach()
    found = records.get(provider.base, record.id)
    assert found is not None
    attached = await Sandbox.attach(found, provider)
    assert attached.capabilities.disk_by == IMAGE
    await attached.close()


async def test_a_spare_has_its_image_mounted_where_it_need_not_be_moved(folder: Path) -> None:
    provider = await provider_at(folder)
    spares = Spares(provider, folder, 1, fit=Fit.of(LIMITS), idle=lambda: True)
    spares.start()
    await eventually(lambda: spares.ready == 1)
    sandbox = await spares.take(folder / "one", limits=LIMITS)
    assert sandbox is not None
    assert sandbox.capabilities.disk_by == IMAGE
    await sandbox.run("echo kept >file")
    assert (folder / "one" / "workspace" / "file").read_text() == "kept\n"
    await sandbox.close()
    await spares.close()


async def test_a_workspace_begun_without_an_image_stays_as_it_is(folder: Path) -> None:
    async with Sandbox(Bubblewrap(), directory=folder / "one", limits=LIMITS) as sandbox:
        await sandbox.run("echo kept >file")
    provider = await provider_at(folder)
    async with Sandbox(provider, directory=folder / "one", limits=LIMITS) as sandbox:
        assert sandbox.capabilities.disk_by == "watched"
        assert (await sandbox.run("cat file")).output == "kept\n"
