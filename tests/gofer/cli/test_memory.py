"""`gofer memory` says of each memory what became of it, and whose word that was."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gofer.app import open_app
from gofer.cli.memory import MAX_IMPORT
from gofer.memory.manager import NoteTidier
from gofer.settings import Settings
from support.command_line import Terminal


def test_what_was_superseded_and_what_the_manager_forgot_says_so(terminal: Terminal, data_dir: Path) -> None:
    def add(text: str) -> str:
        return str(terminal.json("memory", "add", text, "--scope", "agent:gofer")["id"])

    old, new = add("The code of the gate is 1111"), add("The code of the gate is 2222")
    twin = add("Tea at five.")
    add("tea at FIVE")
    scope = terminal.json("memory", "show", old)["scope"]
    assert asyncio.run(_tidied(data_dir, scope)) == 2
    shown = terminal("memory", "show", old)
    assert f"superseded by {new}" in shown
    assert f"gofer memory restore {old}" in shown
    assert ": live" not in shown
    listed = terminal("memory", "search")
    assert f"superseded by {new}" in " ".join(listed.split())
    assert terminal.json("memory", "show", old)["superseded_by"] == new
    assert terminal.json("memory", "show", new)["superseded_by"] is None
    forgotten = terminal("memory", "show", twin)
    assert "memory manager: forgotten" in forgotten
    assert "owner: forgotten" not in forgotten
    terminal("memory", "restore", old)
    assert terminal.json("memory", "show", old)["state"] == "live"


async def _tidied(data_dir: Path, scope_id: str) -> int:
    async with open_app(Settings(data_dir=data_dir), roles=frozenset()) as platform:
        return await NoteTidier(platform.database, platform.vault).tidy(scope_id)


def test_an_import_reads_files_and_stdin_and_waits_for_nobody(terminal: Terminal, tmp_path: Path) -> None:
    scope = ("--scope", "agent:gofer")
    pipe, big, broken = tmp_path / "pipe", tmp_path / "big.jsonl", tmp_path / "broken.md"
    os.mkfifo(pipe)
    big.write_bytes(b"x" * (MAX_IMPORT + 1))
    broken.write_bytes(b"\xff\xfe")
    for path, why in (
        (pipe, "no regular file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "no regular file"),
        (big, "Split it"),
        (broken, "not text in UTF-8"),
        (tmp_path / "none", "No such file"),
    ):
        assert why in terminal("memory", "import", str(path), *scope, fails=2)
    assert "1 memories are kept" in terminal("memory", "import", "-", *scope, stdin="- The pier is long")
    again = terminal("memory", "import", "-", *scope, stdin="- The pier is long")
    assert "1 of them were here before" in again
    assert "The pier is long" in terminal("memory", "search", "pier", "--kind", "note")
    assert "Nothing is remembered" in terminal("memory", "search", "pier", "--kind", "rule")
