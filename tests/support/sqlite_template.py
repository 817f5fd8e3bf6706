"""SQLite files that have their tables already: the migrations take longer than most tests."""

from __future__ import annotations

import functools
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from gofer.settings import Settings
from gofer.store.bootstrap import database_for, migrate
from support.async_bridge import Elsewhere


async def bring_up_to_date(url: str, data_dir: Path) -> None:
    """Run the migrations."""
    database = database_for(Settings(data_dir=data_dir, database_url=url))
    await database.start()
    await migrate(database, backup_to=None)
    await database.close()


def with_tables(settings: Settings) -> Settings:
    """Make the SQLite file of these settings as their first start would, unless it is there or another database is
    meant."""
    file = settings.sqlite_path
    if file is not None and not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(_template())
        file.chmod(0o600)
    return settings


@functools.cache
def _template() -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="gofer-template-"))
    try:
        with closing(Elsewhere()) as elsewhere:  # a loop may be running here
            elsewhere.run(bring_up_to_date(f"sqlite:///{folder}/gofer.db", folder))
        return (folder / "gofer.db").read_bytes()
    finally:
        shutil.rmtree(folder)
