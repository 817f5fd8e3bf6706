"""SQLite's own promises: group commit, a full disk, a power cut, one process at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select

from gofer.errors import ConfigError, StoreBusy, StoreError, StoreUnavailable
from gofer.secrets.key_check import check_canary
from gofer.secrets.rotation import rotate_master_key
from gofer.settings import Settings
from gofer.store.backup import check_database, copy_database, key_beside, key_needed, restore_database
from gofer.store.bootstrap import database_for
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import workspaces
from gofer.vault.envelope import Vault
from gofer.vault.keyring import ring_from_value
from gofer.vault.redaction import Secret
from support.patience import patience


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteDatabase]:
    store = SqliteDatabase(path_of(sqlite_url))
    await store.start()
    yield store
    await store.close()


def add(name: str, size: int = 1) -> Callable[[Connection], Any]:
    return lambda c: c.execute(insert(workspaces).values(id=name, name="x" * size, created_at=0))


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(workspaces)).scalar_one())


async def test_what_is_asked_for_while_it_closes_is_refused_not_left_waiting(sqlite_url: str) -> None:
    store = SqliteDatabase(path_of(sqlite_url))
    await store.start()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.write(count), patience(30))
    await closing


async def test_what_is_queued_together_is_committed_together(store: SqliteDatabase) -> None:
    commits: list[str] = []

    def listen(c: Connection) -> None:
        raw = c.connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)

    await store.write(listen)
    commits.clear()
    await asyncio.gather(*(store.write(add(f"w{n}")) for n in range(100)))
    assert 1 <= len(commits) < 20


async def test_a_full_disk_rolls_back_and_those_that_fit_are_kept(store: SqliteDatabase) -> None:
    pages = await store.write(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())
    await store.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages + 3}"))
    verbs = [add("a"), add("huge", 500_000), add("b"), add("vast", 900_000), add("c")]
    results = await asyncio.gather(*(store.write(verb) for verb in verbs), return_exceptions=True)
    assert [isinstance(result, StoreUnavailable) for result in results] == [False, True, False, True, False]
    assert await store.read(count) == 3
    await store.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1000000"))
    await store.write(add("huge", 500_000))


WRITE_UNTIL_KILLED = """
import asyncio, sys, resource
from pathlib import Path
from gofer.store.sqlite import SqliteDatabase
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
async def main():
    store = SqliteDatabase(Path(sys.argv[1]))
    await store.start()
    async def write(n):
        for k in range(100000):
            name = f"{n}-{k}"
            try:
                row = (name, "x" * 500)
                await store.write(lambda c: c.exec_driver_sql("INSERT INTO workspace VALUES (?, ?, 0)", row))
            except Exception as error:
                print("refused", type(error).__name__, flush=True)
                return
            print("kept", name, flush=True)
    await asyncio.gather(*(write(n) for n in range(8)))
asyncio.run(main())
"""


def writing(path: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), *more], stdout=subprocess.PIPE, text=True
    )


def names_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {row[0] for row in connection.execute("SELECT id FROM workspace")}


def test_a_second_process_is_refused_and_a_power_cut_loses_nothing_acknowledged(
    sqlite_url: str, tmp_path: Path
) -> None:
    """Killed, and the files copied as they lie: what is not in them was only in memory."""
    path = path_of(sqlite_url)
    with writing(path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(300)]
        with pytest.raises(StoreBusy, match=rf"pid {process.pid}\).*Stop that one first.*GOFER_DATABASE_URL"):
            asyncio.run(SqliteDatabase(path).start())
        process.kill()
        lines += process.stdout.readlines()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / f"copy.db{suffix}")
    kept = {line.split()[1] for line in lines if line.endswith("\n")}
    assert kept <= names_in(tmp_path / "copy.db")
    asyncio.run(open_and_close(path))


def test_a_file_size_limit_refuses_in_words_and_keeps_what_it_acknowledged(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    with writing(path, str(path.stat().st_size + 400_000)) as process:
        lines = process.communicate(timeout=patience(60))[0].splitlines()
    kept = {line.split()[1] for line in lines if line.startswith("kept")}
    assert kept
    assert {line for line in lines if line.startswith("refused")} == {"refused StoreUnavailable"}
    assert kept == names_in(path)


async def open_and_close(path: Path) -> None:
    store = SqliteDatabase(path)
    await store.start()
    await store.close()


async def test_a_closed_store_says_so(sqlite_url: str) -> None:
    store = SqliteDatabase(path_of(sqlite_url))
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.write(count)
    await store.start()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.read(count)


async def test_what_is_queued_at_close_is_still_written(sqlite_url: str) -> None:
    store = SqliteDatabase(path_of(sqlite_url))
    await store.start()
    queued = [asyncio.ensure_future(store.write(add(f"w{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*queued)
    assert len(names_in(path_of(sqlite_url))) == 20


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "gofer.db").mkdir()
    with pytest.raises(StoreError, match=r"gofer\.db.*writable"):
        await SqliteDatabase(tmp_path / "gofer.db").start()


async def test_a_file_that_is_no_database_is_told_at_once_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "gofer.db").write_bytes(os.urandom(8192))
    with pytest.raises(ConfigError, match=r"gofer\.db: file is not a database\. .*gofer restore"):
        await SqliteDatabase(tmp_path / "gofer.db").start()


async def test_the_url_names_the_file(tmp_path: Path) -> None:
    store = database_for(Settings(data_dir=tmp_path, database_url=""))
    assert isinstance(store, SqliteDatabase)
    assert store.path == tmp_path / "gofer.db"


# Backups.


async def test_a_backup_made_under_load_is_whole_and_holds_what_was_there(
    store: SqliteDatabase, tmp_path: Path
) -> None:
    for n in range(50):
        await store.write(add(f"before-{n}"))
    load = [asyncio.ensure_future(store.write(add(f"load-{n}", 2000))) for n in range(300)]
    await asyncio.to_thread(copy_database, store.path, tmp_path / "copy.db")
    await asyncio.gather(*load)
    assert {f"before-{n}" for n in range(50)} <= names_in(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0


async def test_a_backup_is_restored_and_the_old_file_kept(sqlite_url: str, tmp_path: Path) -> None:
    path = path_of(sqlite_url)
    store = SqliteDatabase(path)
    await store.start()
    await store.write(add("old"))
    copy_database(path, tmp_path / "copy.db")
    await store.write(add("newer"))
    await store.close()
    aside = restore_database(tmp_path / "copy.db", path)
    assert names_in(path) == {"old"}
    assert aside is not None
    assert names_in(aside) == {"old", "newer"}


async def test_a_key_that_is_rotated_during_a_backup_is_still_the_one_beside_it(
    sqlite_url: str, vault: Vault, tmp_path: Path
) -> None:
    store = SqliteDatabase(path_of(sqlite_url))
    await store.start()
    await store.write(partial(check_canary, vault=vault))
    before, loop = vault.ring.active.id, asyncio.get_running_loop()

    def rotate_meanwhile(key_id: str) -> str:
        asyncio.run_coroutine_threadsafe(rotate_master_key(store, vault), loop).result()
        return vault.ring.find(bytes.fromhex(key_id)).export().reveal()

    copy = tmp_path / "copy.db"
    await asyncio.to_thread(copy_database, store.path, copy, rotate_meanwhile)
    await store.close()
    assert key_needed(copy) == before != vault.ring.active.id
    beside = key_beside(copy)
    assert ring_from_value(Secret(beside.read_text())).ids == (before,)
    assert beside.stat().st_mode & 0o077 == 0


async def test_of_two_backups_to_one_name_at_once_one_is_whole_and_the_other_refused(
    sqlite_url: str, vault: Vault, tmp_path: Path
) -> None:
    store = SqliteDatabase(path_of(sqlite_url))
    await store.start()
    await store.write(partial(check_canary, vault=vault))
    await store.close()
    target = tmp_path / "copy.db"

    def another_meanwhile(key_id: str) -> str:
        copy_database(store.path, target)
        return "a key"

    with pytest.raises(ConfigError, match="exists already"):
        copy_database(store.path, target, another_meanwhile)
    check_database(target)
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["copy.db"]


async def test_a_folder_may_have_any_name(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "50% #1?mode=rw"
    folder.mkdir()
    restore_database(path_of(sqlite_url), folder / "gofer.db")
    store = SqliteDatabase(folder / "gofer.db")
    await store.start()
    await store.write(add("there"))
    assert {each.stat().st_mode & 0o077 for each in folder.iterdir()} == {0}  # for this user alone
    copy_database(store.path, folder / "copy.db")
    await store.close()
    (folder / "copy.db").rename(tmp_path / "plain.db")
    assert "there" in names_in(tmp_path / "plain.db")


async def test_a_kill_in_the_middle_of_a_restore_leaves_the_old_database_whole(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(sqlite_url)
    copy_database(path, tmp_path / "copy.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("INSERT INTO workspace (id, name, created_at) VALUES ('in the log', '', 0)")
        connection.commit()
        killed = (
            tmp_path / "killed.db"
        )  # as a server leaves it that was killed: a file, and its log beside it
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")

    def kill(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        restore_database(tmp_path / "copy.db", killed)
    assert "in the log" in names_in(killed)


def test_what_is_no_backup_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(os.urandom(4096))
    with closing(sqlite3.connect(tmp_path / "another program's")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    for path in (tmp_path / "junk", tmp_path / "missing", tmp_path / "another program's"):
        with pytest.raises(ConfigError, match="not a Gofer backup"):
            check_database(path)
    with pytest.raises(ConfigError, match="exists already"):
        copy_database(path_of(sqlite_url), tmp_path / "junk")
