"""`gofer memory` says of each memory what became of it, and whose word that was."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gofer.app import open_app
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
