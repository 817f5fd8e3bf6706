"""`gofer audit`: whether the log is whole, and a copy of it to compare with."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

from gofer.cli import main
from support.command_line import Terminal


def test_a_log_is_exported_verified_and_found_to_be_cut(
    terminal: Terminal, data_dir: Path, tmp_path: Path
) -> None:
    terminal("members", "add", "ada", "--role", "viewer")
    export = tmp_path / "audit.jsonl"
    terminal("audit", "export", str(export))
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    assert lines[0]["action"] == "members.add"
    assert lines[-1]["head"]["place"] == len(lines) - 1
    assert "members.add" in terminal("audit", "list")
    assert "whole" in terminal("audit", "verify", "--since", str(export))
    with contextlib.closing(sqlite3.connect(data_dir / "gofer.db")) as store, store:
        store.execute("DELETE FROM audit_entry")
    assert main(["audit", "verify"]) == 1
    assert main(["audit", "verify", "--since", str(export)]) == 1
    told = terminal._capsys.readouterr()
    assert "its head says" in told.out
    assert "gofer audit accept" in told.err
    terminal("audit", "accept")
    assert "whole" in terminal("audit", "verify")
    assert main(["audit", "verify", "--since", str(export)]) == 1, "the export remembers"
