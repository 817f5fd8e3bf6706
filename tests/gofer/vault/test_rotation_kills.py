"""A rotation killed at any step leaves every secret readable, and the next one finishes it.

A step is a file operation (seen by an audit hook) or a statement that changes the database. Run as a script,
this file forks a rotation, kills it with SIGKILL at its first step, then one at its second, and so on until
one gets through.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, select, union_all
from sqlalchemy.engine import Engine

from gofer.secrets.rotation import new_conversation_key, rotate_master_key
from gofer.secrets.secret_store import all_secrets, put_secret
from gofer.store.encryption import conversation_key
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import conversations, secrets
from gofer.vault.envelope import Vault, key_id
from gofer.vault.errors import VaultError
from gofer.vault.keyring import open_ring
from gofer.vault.redaction import Secret

FILE_STEPS = {"open", "os.rename", "os.remove"}
VALUES = {f"s{number}": Secret(f"value {number}") for number in range(3)}


def test_a_kill_at_any_step_leaves_every_secret_readable(data_dir: Path) -> None:
    from support.patience import patience  # this file is also a program, which has no such folder

    result = subprocess.run(
        [sys.executable, __file__, str(data_dir)], capture_output=True, text=True, timeout=patience(120)
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["unreadable"] == []
    assert report["not finished by the next rotation"] == []
    assert report["killed at"].count("os.rename") == 2
    assert {"BEGIN", "UPDATE", "INSERT", "COMMIT"} <= set(report["killed at"])


class Steps:
    """Counts steps while armed, and dies at the chosen one."""

    def __init__(self) -> None:
        self.armed = False
        self.left = 0
        self.report = -1

    def step(self, name: str) -> None:
        if self.armed:
            self.left -= 1
            if self.left == 0:
                os.write(self.report, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, name: str, args: tuple[Any, ...]) -> None:
        if name in FILE_STEPS and (name != "open" or "master.key" in str(args[0])):
            self.step(name)

    def statement(self, statement: str) -> None:
        if not statement.startswith("SELECT"):
            self.step(statement.split()[0])


async def opened(data_dir: Path) -> SqliteDatabase:
    database = SqliteDatabase(data_dir / "gofer.db")
    await database.start()
    return database


def fresh(data_dir: Path) -> Vault:
    return Vault(open_ring(data_dir, ciphertext_exists=(data_dir / "master.key").exists()))


def fill(connection: Connection, vault: Vault) -> None:
    wrapped = new_conversation_key(connection, vault, "conv_1")
    row = {
        "id": "conv_1",
        "workspace_id": "ws_test",
        "kind": "chat",
        "title": "",
        "last_seq": 0,
        "created_at": 0,
    }
    connection.execute(conversations.insert().values(**row, data_key=wrapped))
    for name, value in VALUES.items():
        put_secret(connection, vault, workspace_id="ws_test", name=name, value=value)


async def prepare(data_dir: Path) -> None:
    database, vault = await opened(data_dir), fresh(data_dir)
    await database.write(lambda connection: fill(connection, vault))
    await database.close()


async def rotate_until_killed(data_dir: Path, steps: Steps) -> None:
    database, vault = await opened(data_dir), fresh(data_dir)
    steps.armed = True
    await rotate_master_key(database, vault)
    steps.armed = False
    await database.close()


async def readable(database: SqliteDatabase, vault: Vault) -> bool:
    try:
        await database.read(lambda connection: conversation_key(connection, vault, "conv_1"))
        return await database.read(lambda connection: all_secrets(connection, vault)) == VALUES
    except VaultError:
        return False


def keys_in_use(connection: Connection) -> set[str]:
    both = union_all(select(secrets.c.data_key), select(conversations.c.data_key))
    return {key_id(wrapped).hex() for wrapped in connection.execute(both).scalars()}


async def examine(data_dir: Path) -> tuple[bool, bool]:
    """Whether all is readable after a kill, and whether another rotation ends as it should."""
    database = await opened(data_dir)
    before = await readable(database, fresh(data_dir))
    done = await rotate_master_key(database, fresh(data_dir))
    vault = fresh(data_dir)
    complete = await database.read(keys_in_use) == {done.key_id} and vault.ring.ids == (done.key_id,)
    after = await readable(database, vault)
    await database.close()
    return before, complete and after


def killed_at(data_dir: Path, step: int, steps: Steps) -> str:
    """Where the rotation died; empty when it got through."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        steps.left, steps.report = step, write
        asyncio.run(rotate_until_killed(data_dir, steps))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        where = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) if where else status == 0, (where, status)
    return where


def main(data_dir: Path) -> None:
    asyncio.run(prepare(data_dir))
    steps = Steps()
    sys.addaudithook(steps.audit)
    event.listen(Engine, "connect", lambda driver, _: driver.set_trace_callback(steps.statement))
    kills: list[str] = []
    unreadable: list[str] = []
    unfinished: list[str] = []
    while where := killed_at(data_dir, len(kills) + 1, steps):
        kills.append(where)
        before, after = asyncio.run(examine(data_dir))
        unreadable += [] if before else [f"{len(kills)} {where}"]
        unfinished += [] if after else [f"{len(kills)} {where}"]
    report = {"killed at": kills, "unreadable": unreadable, "not finished by the next rotation": unfinished}
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
