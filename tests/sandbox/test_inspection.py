"""Looking at a session from outside: what it uses and holds, whoever owns it, and nothing beyond its workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from gofer_sandbox import InvalidInput, Sandbox, SandboxGone, Unconfined
from gofer_sandbox.inspection import list_workspace, look
from gofer_sandbox.limits import MIB
from support.patience import eventually, patience


async def test_what_it_uses_and_holds_is_seen_from_outside(tmp_path: Path) -> None:
    async with Sandbox(Unconfined(), directory=tmp_path / "one") as sandbox:
        made = "mkdir -p a/b; head -c 3000000 /dev/zero > a/b/big; ln -s / out; ln -s a in; sleep 987 & echo"
        await sandbox.run(made, timeout=patience(30))
        await eventually(lambda: any("sleep 987" in each.command for each in look(sandbox.record).processes))
        sight = look(sandbox.record)
        assert sight.alive
        assert sight.memory > MIB // 2
        assert sight.usage.size >= 3_000_000
        assert sight.usage.files == 5
        assert {each.name: each.kind for each in list_workspace(sandbox.record).entries} == {
            "a": "directory",
            "in": "link",
            "out": "link",
        }
        (big,) = list_workspace(sandbox.record, ["a", "b"]).entries
        assert (big.name, big.size) == ("big", 3_000_000)
        assert list_workspace(sandbox.record, limit=1).more == 2
        for path in (
            ["out"],
            ["in"],
            [".."],
            ["a", "..", ".."],
            ["/etc"],
            ["a", "b", "big"],
            ["none"],
            ["a\0"],
        ):
            with pytest.raises(InvalidInput):
                list_workspace(sandbox.record, path)
        record = sandbox.record
    after = look(record)
    assert (after.alive, after.memory, after.processes) == (False, 0, ())
    assert after.usage.files == 5


async def test_one_on_another_machine_is_not_seen(tmp_path: Path) -> None:
    async with Sandbox(Unconfined(), directory=tmp_path / "one") as sandbox:
        record = sandbox.record
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    with pytest.raises(SandboxGone):
        look(record)
