"""The upgrade signs what is there once; who takes the key out of the database later gets nothing signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, update

from gofer.app import open_app
from gofer.errors import ConfigError
from gofer.mac_upgrade import RECORD, place_of
from gofer.restore import restore
from gofer.secrets.rotation import rotate_master_key
from gofer.secrets.secret_store import PLATFORM
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.backup import copy_database
from gofer.store.tables import audit_entries, members, secrets
from gofer.web.auth.members import first_owner

NOBODY = frozenset[str]()
UNSIGNED = {
    "id": "m2",
    "workspace_id": "main",
    "name": "eve",
    "role": "owner",
    "password": "",
    "created_at": 1.0,
}


@pytest.fixture
def settings(database_url: str, data_dir: Path) -> Settings:
    return Settings(data_dir=data_dir, database_url=database_url, sandbox="off")


async def did(settings: Settings, verb: Any) -> Any:
    async with open_app(settings, roles=NOBODY) as platform:
        return await platform.database.write(verb)


def as_before(connection: Connection) -> None:
    """What the release before left: no key, no signatures."""
    first_owner(connection)
    for table in row_macs.TABLES:
        connection.execute(update(table).values(mac=None))
    connection.execute(delete(secrets).where(secrets.c.owner == PLATFORM))


def refused(connection: Connection) -> list[str]:
    return [each.key for each in row_macs.find_refused(connection, limit=10)]


async def test_what_is_there_is_signed_once_and_never_again(settings: Settings) -> None:
    await did(settings, as_before)
    (settings.data_dir / RECORD).unlink()
    assert await did(settings, refused) == [], "the upgrade"
    assert place_of(settings) in json.loads((settings.data_dir / RECORD).read_text())
    await did(settings, lambda c: c.execute(insert(members).values(**UNSIGNED)))
    assert await did(settings, refused) == ["m2"]
    # The key is taken out, so that the next start takes what is there for an upgrade.
    await did(settings, as_before)
    with pytest.raises(ConfigError, match=r"lost the key.*gofer restore.*remove .*rows-signed.json"):
        await did(settings, refused)


async def test_a_key_that_was_exchanged_is_named_with_the_way_out(settings: Settings) -> None:
    await did(settings, first_owner)
    ours = secrets.c.owner == PLATFORM
    await did(settings, lambda c: c.execute(update(secrets).where(ours).values(sealed=b"\x02" + b"x" * 60)))
    with pytest.raises(ConfigError, match=r"was changed in the database.*gofer restore"):
        await did(settings, refused)


async def test_a_machine_without_a_record_signs_nothing_that_another_has(settings: Settings) -> None:
    await did(settings, first_owner)
    await did(settings, lambda c: c.execute(insert(members).values(**UNSIGNED)))
    (settings.data_dir / RECORD).unlink()
    assert await did(settings, refused) == ["m2"]
    assert (settings.data_dir / RECORD).exists()


async def test_a_machine_whose_data_directory_is_not_kept_knows_the_key_by_a_setting(
    settings: Settings,
) -> None:
    await did(settings, first_owner)
    record = settings.data_dir / RECORD
    known = settings.model_copy(
        update={"rows_key": json.loads(record.read_text())[place_of(settings)]["key"]}
    )
    record.unlink()
    assert await did(known, refused) == []
    await did(known, as_before)
    record.unlink()
    with pytest.raises(ConfigError, match=r"lost the key.*GOFER_ROWS_KEY"):
        await did(known, refused)


async def test_an_emptied_database_is_a_fresh_one(sqlite_url: str, data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir, database_url=sqlite_url, sandbox="off")
    await did(settings, first_owner)
    for name in ("gofer.db", "gofer.db-wal", "gofer.db-shm", "master.key"):
        (data_dir / name).unlink(missing_ok=True)
    assert await did(settings, refused) == []


async def test_rotation_rewrites_no_row(settings: Settings) -> None:
    async with open_app(settings, roles=NOBODY) as platform:
        await platform.database.write(first_owner)
        macs = select(members.c.mac)
        before = await platform.database.read(lambda c: c.execute(macs).scalars().all())
        await rotate_master_key(platform.database, platform.vault)
    async with open_app(settings, roles=NOBODY) as platform:
        assert await platform.database.read(lambda c: c.execute(macs).scalars().all()) == before
        assert await platform.database.read(refused) == []


async def test_a_backup_from_before_is_signed_when_it_is_restored(
    sqlite_url: str, data_dir: Path, tmp_path: Path
) -> None:
    """On the same machine, and on another that has only the file and the key."""
    settings = Settings(data_dir=data_dir, database_url=sqlite_url, sandbox="off")
    await did(settings, as_before)
    backup = tmp_path / "old.db"
    copy_database(data_dir / "gofer.db", backup)
    (tmp_path / "old.db.key").write_bytes((data_dir / "master.key").read_bytes())
    assert restore(settings, backup, with_key=False).unsigned, "whoever restores it is told"
    assert await did(settings, refused) == []
    elsewhere = tmp_path / "elsewhere"
    other = Settings(data_dir=elsewhere, sandbox="off")
    copy_database(data_dir / "gofer.db", tmp_path / "new.db")
    (tmp_path / "new.db.key").write_bytes((data_dir / "master.key").read_bytes())
    (tmp_path / "new.db.key").chmod(0o600)
    assert not restore(other, tmp_path / "new.db", with_key=True).unsigned
    assert await did(other, refused) == []


async def test_the_way_back_and_forth_is_found_and_accepted(settings: Settings) -> None:
    """What the previous release wrote meanwhile is refused, and nothing else."""
    await did(settings, first_owner)

    def previous_release(connection: Connection) -> None:
        connection.execute(update(members).values(name="boss"))
        connection.execute(
            insert(audit_entries).values(
                workspace_id="main", member_id="", name="", via="socket", action="old", data={}, at=1.0
            )
        )

    await did(settings, previous_release)
    async with open_app(settings, roles=frozenset({"web"})) as platform:
        (found,) = await platform.database.read(lambda c: row_macs.find_refused(c, limit=10))
        assert found.table == "member"
        await platform.database.write(lambda c: row_macs.accept(c, found))
        assert await platform.database.read(refused) == []
