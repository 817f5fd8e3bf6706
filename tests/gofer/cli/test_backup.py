"""Backup while serving, restore into an empty place, and everything that must be refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import SIGNING_KEY, Hello, Process, Terminal
from support.patience import until


def test_a_backup_made_under_load_brings_everything_back(
    start: Callable[..., Process],
    terminal: Terminal,
    hello: Hello,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start().wait_until_ready()
    key = tmp_path / "key.txt"
    key.write_text(SIGNING_KEY)
    made = terminal.json(
        *("connections", "add", "hello", "--set", f"reply_url={hello.service.url}"),
        *("--secret-file", f"signing_key={key}"),
    )
    id_ = made["connection"]["id"]
    accepted: list[str] = []
    answers: set[int] = set()
    enough = threading.Event()

    def write() -> None:
        while not enough.is_set():
            name = f"m{len(accepted)}"
            answers.add(hello.post(server.url, id_, name).status_code)
            accepted.append(name)
            time.sleep(0.02)  # load, not a flood: all of it is answered again after the restore

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: len(accepted) > 5)
    terminal("key", "rotate")
    before = list(accepted)
    backup = tmp_path / "copy.db"
    assert terminal.json("backup", str(backup), "--with-key")["key_file"] == f"{backup}.key"
    enough.set()
    writer.join()
    assert answers == {200}
    terminal("restore", str(backup), fails=75)
    terminal("backup", str(backup), fails=2)
    assert server.stop() == 0
    assert [stat.S_IMODE(Path(name).stat().st_mode) for name in (backup, f"{backup}.key")] == [0o600] * 2

    fresh = tmp_path / "fresh"
    monkeypatch.setenv("GOFER_DATA_DIR", str(fresh))
    assert "--with-key" in terminal("restore", str(backup), fails=78)
    terminal("restore", str(backup), "--with-key")
    names = {
        each["external_id"] for each in terminal.json("deliveries", "list", "--limit", "1000")["deliveries"]
    }
    assert names >= {*before}
    assert [each["name"] for each in terminal.json("secrets", "list")["secrets"]] == ["signing_key"]
    assert SIGNING_KEY not in terminal.shown

    again = start(at=fresh).wait_until_ready()
    assert hello.post(again.url, id_, "m0").json()["result"] in ("repeat", "redriven")
    assert hello.post(again.url, id_, "after").json() == {"result": "accepted"}
    until(lambda: hello.replies_to("after"))


def test_a_restore_keeps_what_was_there(terminal: Terminal, data_dir: Path, tmp_path: Path) -> None:
    backup = tmp_path / "copy.db"
    terminal("secrets", "put", "first", stdin="the first secret")
    terminal("backup", str(backup))
    assert not Path(f"{backup}.key").exists()
    terminal("secrets", "put", "second", stdin="the second secret")
    done = terminal.json("restore", str(backup))
    assert [each["name"] for each in terminal.json("secrets", "list")["secrets"]] == ["first"]
    os.replace(done["previous"], data_dir / "gofer.db")
    assert len(terminal.json("secrets", "list")["secrets"]) == 2


def test_a_backup_holds_the_files_too(terminal: Terminal, data_dir: Path, tmp_path: Path) -> None:
    terminal("status")
    work = data_dir / "shells" / "conv_1-agent_1" / "workspace"
    work.mkdir(parents=True)
    (work / "notes.txt").write_text("of a run")
    (work / "away").symlink_to("/etc")
    os.mkfifo(work / "pipe")
    (data_dir / "agents").mkdir()
    (data_dir / "agents" / "coder.toml").write_text('model = "auto"\n')
    (data_dir / "prices.toml").write_text("")
    plain = terminal.json("backup", str(tmp_path / "plain.db"))
    assert plain["files"] == str(tmp_path / "plain.db.files.tgz")
    terminal("backup", str(tmp_path / "full.db"), "--with-shells")
    (data_dir / "agents" / "coder.toml").write_text('model = "offline/offline"\n')
    (work / "notes.txt").write_text("changed since")
    assert terminal.json("restore", str(tmp_path / "plain.db"))["files"] == ["agents", "prices.toml"]
    assert (data_dir / "agents" / "coder.toml").read_text() == 'model = "auto"\n'
    assert "offline" in (data_dir / "agents.replaced-1" / "coder.toml").read_text()
    assert (work / "notes.txt").read_text() == "changed since"
    terminal("restore", str(tmp_path / "full.db"))
    assert (work / "notes.txt").read_text() == "of a run"
    assert (work / "away").readlink() == Path("/etc")
    (tmp_path / "plain.db.files.tgz").write_bytes(b"no archive")
    assert "cannot be unpacked" in terminal("restore", str(tmp_path / "plain.db"), fails=78)


def test_what_is_no_backup_or_could_not_be_read_is_refused_untouched(
    terminal: Terminal, data_dir: Path, tmp_path: Path
) -> None:
    terminal("secrets", "put", "first", stdin="the first secret")
    terminal("backup", str(tmp_path / "copy.db"))
    terminal("key", "rotate")
    terminal("backup", str(tmp_path / "newer.db"), "--with-key")
    (tmp_path / "half.db.key").touch()
    assert "exists already" in terminal("backup", str(tmp_path / "half.db"), "--with-key", fails=2)
    assert not (tmp_path / "half.db").exists()
    before = (data_dir / "gofer.db").read_bytes()
    (tmp_path / "nonsense.db").write_bytes(b"not a database" * 1000)
    cut = (tmp_path / "copy.db").read_bytes()[:-4096]
    (tmp_path / "cut.db").write_bytes(cut)
    assert "not a Gofer backup" in terminal("restore", str(tmp_path / "nonsense.db"), fails=78)
    terminal("restore", str(tmp_path / "cut.db"), fails=78)
    assert "needs the master key" in terminal("restore", str(tmp_path / "copy.db"), fails=78)
    shutil.copy(tmp_path / "newer.db", tmp_path / "later.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "later.db")) as later:
        later.execute("UPDATE alembic_version SET version_num = '9999-9998'")
        later.commit()
    assert "Install that release first" in terminal("restore", str(tmp_path / "later.db"), fails=78)
    assert (data_dir / "gofer.db").read_bytes() == before
    terminal("restore", str(tmp_path / "newer.db"))


def test_postgres_is_backed_up_with_its_own_tool(
    terminal: Terminal, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOFER_DATABASE_URL", postgres_url)
    assert "pg_dump" in terminal("backup", fails=4)
    (tmp_path / "some.db").touch()
    assert "pg_restore" in terminal("restore", str(tmp_path / "some.db"), fails=4)
