"""`gofer memory` says of each memory what became of it, and whose word that was."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, update

from gofer.app import Platform, open_app
from gofer.cli.memory import MAX_IMPORT
from gofer.memory.changes import remember
from gofer.memory.manager import NoteTidier, ensure_tidying
from gofer.memory.records import NewMemory, Source
from gofer.settings import Settings
from gofer.store.tables import memories
from gofer.vault.envelope import Vault
from support.command_line import Terminal


def test_what_was_superseded_and_what_the_manager_forgot_says_so(terminal: Terminal, data_dir: Path) -> None:
    def add(text: str) -> str:
        return str(terminal.json("memory", "add", text, "--scope", "agent:gofer")["id"])

    old, new = add("The code of the gate is 1111"), add("The code of the gate is 2222")
    twin = add("Tea at five.")
    add("tea at FIVE")
    scope = terminal.json("memory", "show", old)["scope"]
    tidied = asyncio.run(_in_app(data_dir, lambda app: NoteTidier(app.database, app.vault).tidy(scope)))
    assert tidied == 2
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


def test_everything_the_page_does_can_be_done_from_the_command_line(terminal: Terminal) -> None:
    to_all = ("--scope", "agent:gofer")
    note = terminal.json("memory", "add", "The buoy is red", *to_all)["id"]
    assert "The buoy is red" in terminal("memory", "search", "buoys", *to_all)
    terminal("memory", "edit", note, "--text", "The buoy is green")
    assert "-The buoy is red" in terminal("memory", "show", note)
    terminal("memory", "forget", note)
    assert "Nothing is remembered" in terminal("memory", "search", "buoy")
    terminal("memory", "restore", note)
    assert terminal.json("memory", "reindex", *to_all)["scopes"] == 1
    assert terminal.json("memory", "reindex")["scopes"] >= 1
    assert "The buoy is green" in terminal("memory", "search", "buoy")
    assert "gofer link" in terminal("memory", "add", "x", "--scope", "person:me", fails=3)
    terminal("link")  # the command line speaks for the first owner, who is there from now on
    mine = terminal.json("memory", "edit", note, "--scope", "person:me")["id"]
    assert terminal.json("memory", "show", mine)["scope"].startswith("person:")
    lines = terminal("memory", "export", "--scope", "person:me")
    assert [json.loads(line)["text"] for line in lines.splitlines()] == ["The buoy is green"]
    assert "1 of them were here before" in terminal("memory", "import", "-", stdin=lines)
    assert "can be pinned" in terminal("memory", "edit", mine, "--pin", fails=4)
    assert "There is no" in terminal("memory", "reindex", "--scope", "agent:nobody", fails=3)


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


def test_what_is_left_of_a_note_is_said_in_words(terminal: Terminal, data_dir: Path, tmp_path: Path) -> None:
    def add(text: str) -> str:
        return str(terminal.json("memory", "add", text, "--scope", "agent:gofer")["id"])

    changed, damaged = add("The pier\nis long"), add("The mole is short")
    terminal("memory", "edit", changed, "--text", "The pier\nis longer")
    shown = terminal("memory", "show", changed)
    assert shown.splitlines()[-2:] == ["-is long", "+is longer"], "what has changed"
    scope = terminal.json("memory", "show", changed)["scope"]
    orphan = asyncio.run(
        _in_app(data_dir, lambda app: app.database.write(_orphan, vault=app.vault, scope_id=scope))
    )
    assert "(purged)" in terminal("memory", "show", orphan)
    broken = update(memories).where(memories.c.id == damaged).values(sealed=b"\x02nonsense")
    asyncio.run(_in_app(data_dir, lambda app: app.database.write(lambda c: c.execute(broken).rowcount)))
    assert "unreadable" in terminal("memory", "search", "--scope", "agent:gofer")
    assert "was changed or damaged" in terminal("memory", "show", damaged)
    out = tmp_path / "notes.jsonl"
    out.write_text(terminal("memory", "export", "--scope", "agent:gofer"))
    assert "1 memories cannot be read" in terminal.shown
    assert "1 are left out" in terminal("memory", "import", str(out))
    terminal("memory", "forget", damaged)
    assert "forgotten" in terminal("memory", "show", damaged)
    # What belongs to somebody else elsewhere says how to place it.
    line = json.dumps(
        {
            "id": "x",
            "text": "Zoe likes tea",
            "scope": "person:person_zoe",
            "scope_name": "Zoe",
            "trust": "member",
        }
    )
    out.write_text(line)
    told = terminal("memory", "import", str(out), fails=3)
    assert "--place person:person_zoe=person:ID" in told
    assert "say SCOPE=SCOPE" in terminal("memory", "import", str(out), "--place", "zoe", fails=2)
    done = terminal("memory", "import", str(out), "--place", "person:person_zoe=agent:gofer")
    assert "What is for person:person_zoe in the file is for agent:" in done


async def _in_app(data_dir: Path, work: Callable[[Platform], Awaitable[Any]]) -> Any:
    async with open_app(Settings(data_dir=data_dir), roles=frozenset()) as platform:
        return await work(platform)


def _orphan(connection: Connection, vault: Vault, scope_id: str) -> str:
    """A note of a conversation that is not there any more."""
    return remember(
        connection, vault, NewMemory("note", scope_id, "Long ago", "owner", Source("conv_gone", 1))
    ).id


def test_jobs_that_tidy_memory_are_listed_with_all(terminal: Terminal, data_dir: Path) -> None:
    asyncio.run(_in_app(data_dir, lambda app: app.database.write(ensure_tidying, scope_id="agent:x")))
    assert "No jobs." in terminal("jobs", "list")
    assert "memory" in terminal("jobs", "list", "--all")
    assert "memory" in terminal("jobs", "list", "--kind", "memory")
