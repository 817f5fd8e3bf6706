"""A release is tried before anybody can deploy it, where it can do no harm: it sees a copy of the store and nothing
else of the machine, and time, memory and disk are bounded."""

from __future__ import annotations

import socket
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gofer.cli.selfcheck import SelfCheckFailed, self_check
from gofer.releases import trial
from gofer.releases.trial import try_release
from gofer.releases.wheel import ReleaseRefused
from gofer.settings import Settings
from gofer.store import migrations
from gofer.store.bootstrap import database_for, migrate
from gofer_supervisor.home import Release
from support.patience import patience
from support.releases import compiled_place

Make = Callable[[str], Release]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A release whose own check is a program."""

    def make(program: str) -> Release:
        package = tmp_path / "release" / "gofer"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(program)
        return Release(build="new", version="1", python=sys.executable, path=[str(package.parent)])

    return make


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store with its master key beside it."""
    data_dir = tmp_path / "data"
    database = database_for(Settings(data_dir=data_dir))
    await database.start()
    await migrate(database, backup_to=None)
    await database.close()
    (data_dir / "master.key").write_text("secret")
    return data_dir / "gofer.db"


CHANGES_ITS_COPY = """
import os, sqlite3, sys
assert sys.argv[1:3] == ["selfcheck", "--database"], sys.argv
with sqlite3.connect(sys.argv[3]) as connection:
    (version,) = connection.execute("DELETE FROM alembic_version RETURNING version_num").fetchone()
print(version, os.path.exists({data!r}), os.listdir())
"""


def test_it_sees_a_copy_of_the_store_and_not_the_key(make: Make, store: Path) -> None:
    release = make(CHANGES_ITS_COPY.format(data=str(store.parent)))
    assert try_release(release, store) == f"{migrations.newest()} False ['copy.db']"
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    assert compiled_place(Path(release.path[0], "gofer", "__main__.py")).exists(), "it starts at once later"


HARMFUL = {
    "ends with an error": ("raise SystemExit('it does not work')", "it does not work"),
    "never ends": ("import time; time.sleep(3600)", "did not end in 1 seconds"),
    "eats memory": ("print(len(bytearray(5 << 30)))", "MemoryError"),
    "fills the disk": (
        "import os\nfile = open('large', 'wb')\nos.unlink('large')\nwhile True: file.write(bytes(1 << 20))",
        "of the disk",
    ),
    "calls somebody": (
        "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)",
        "refused|unreachable",
    ),
    "changes itself": ("open(__file__, 'w')", "Read-only file system"),
    "is not there": ("", "said nothing"),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_what_does_harm_is_refused_and_does_none(
    make: Make, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAX_DISK", 50_000_000)
    program, why = HARMFUL[what]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        release = make(program.format(port=listening.getsockname()[1]))
        if what == "is not there":
            release.path = (f"{release.path[0]}-gone",)
        with pytest.raises(ReleaseRefused, match=why):
            try_release(release, None, timeout=1 if what == "never ends" else patience(60))


def test_who_stops_meanwhile_does_not_wait_for_it(make: Make) -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(ReleaseRefused, match="was stopped"):
        try_release(make("import time; time.sleep(3600)"), None, stopping=stopping)


async def found(checking: AsyncIterator[str], count: int) -> list[str]:
    """The first things that a release finds about itself. The scripted conversation is the last of them, and slow."""
    return [await anext(checking) for _ in range(count)]


async def test_a_release_imports_itself_and_migrates_the_copy(store: Path) -> None:
    imported, migrated = await found(self_check(store), 2)
    assert "modules can be imported" in imported
    assert migrations.newest() in migrated


async def test_a_release_that_cannot_migrate_the_copy_does_not_work(store: Path) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    with pytest.raises(SelfCheckFailed, match="cannot be migrated"):
        await found(self_check(store), 2)
