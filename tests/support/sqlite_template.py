"""SQLite files that have their tables already: the migrations take longer than most tests."""

from __future__ import annotations

import functools
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from gofer.settings import Settings
from gofer.store.bootstrap import database_for, migrate
from gofer.vault.envelope import Vault
from gofer.vault.keyring import FILE_NAME, MasterKey, open_ring
from support.async_bridge import Elsewhere
from support.world import World

_KEY = MasterKey.new().export()


def vault_in(data_dir: Path) -> Vault:
    """A vault whose master key is the same in every test of a process, so that one furnished store does for all."""
    file = data_dir / FILE_NAME
    file.touch(0o600)
    file.write_text(f"{_KEY.reveal()}\n")
    return Vault(open_ring(data_dir, ciphertext_exists=False))


async def furnish(url: str, data_dir: Path) -> None:
    """Put the world of `support/world.py` into a store that has its tables."""
    database = database_for(Settings(data_dir=data_dir, database_url=url))
    await database.start()
    await World.made(database, vault_in(data_dir))
    await database.close()


async def bring_up_to_date(url: str, data_dir: Path) -> None:
    """Run the migrations."""
    database = database_for(Settings(data_dir=data_dir, database_url=url))
    await database.start()
    await migrate(database, backup_to=None)
    await database.close()


def with_tables(settings: Settings, *, furnished: bool = False) -> Settings:
    """Make the SQLite file of these settings as their first start would, unless it is there or another database is
    meant; with the world in it, for a vault of `vault_in`, or empty."""
    file = settings.sqlite_path
    if file is not None and not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(_template(furnished))
        file.chmod(0o600)
    return settings


def make_templates() -> None:
    """Make them now, for every process that is forked from this one."""
    _template(furnished=True)


@functools.cache
def _template(furnished: bool) -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="gofer-template-"))
    try:
        with closing(Elsewhere()) as elsewhere:  # a loop may be running here
            url = f"sqlite:///{folder}/gofer.db"
            if furnished:
                (folder / "gofer.db").write_bytes(_template(False))
                elsewhere.run(furnish(url, folder))
            else:
                elsewhere.run(bring_up_to_date(url, folder))
        return (folder / "gofer.db").read_bytes()
    finally:
        shutil.rmtree(folder)
