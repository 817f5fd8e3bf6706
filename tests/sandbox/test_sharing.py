"""A session that uses another one's workspace: the same files and user, to read or to work in, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from gofer_sandbox import Sandbox, Share


def share(host: Sandbox, *, read_only: bool) -> Share:
    reference = host.record.reference
    return Share(host.workspace, reference.uid, reference.gid, read_only)


async def test_both_work_in_the_same_files_and_the_guest_leaves_them_as_they_are(tmp_path: Path) -> None:
    async with Sandbox(directory=tmp_path / "host") as host:
        await host.run("echo one > notes; mkdir -m 700 private; echo two > private/more", 20)
        guest = Sandbox(
            directory=tmp_path / "guest", ephemeral=True, survives=False, share=share(host, read_only=False)
        )
        async with guest:
            result = await guest.run("cat notes private/more; echo three >> notes; echo $$; x=1", 20)
            assert result.exit_code == 0, result.output
            assert guest.id != host.id
        owner = os.stat(host.workspace).st_uid
        assert (await host.run("cat notes; echo still writable >> notes; echo $x", 20)).output == (
            "one\nthree\n\n"
        )
        assert os.stat(host.workspace / "notes").st_uid == owner
        assert not (tmp_path / "guest").exists()
    assert (tmp_path / "host" / "workspace" / "notes").exists()


async def test_a_guest_that_may_only_read_changes_nothing(tmp_path: Path) -> None:
    async with Sandbox(directory=tmp_path / "host") as host:
        await host.run("echo one > notes", 20)
        guest = Sandbox(
            directory=tmp_path / "guest", ephemeral=True, survives=False, share=share(host, read_only=True)
        )
        async with guest:
            assert (await guest.read_bytes("notes")).data == b"one\n"
            tried = "echo two > notes; rm -f notes; touch more; mkdir d; mount -o remount,rw /workspace; cat notes"
            result = await guest.run(tried, 20)
            assert result.output.endswith("one\n"), result.output
            assert "Read-only file system" in result.output
            await guest.run("echo scratch > /tmp/mine && cat /tmp/mine", 20)
        assert (await host.run("ls", 20)).output == "notes\n"
