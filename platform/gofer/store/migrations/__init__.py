"""Alembic migrations, the same for both databases, run by Gofer itself at start.

Rules: expand first, contract a release later. A new column is nullable or has a server default; nothing is renamed
or dropped in the release that stops using it, so that the previous release still runs on a migrated database.

How would that release know? Its own scripts end before such a version. So a version made after 0004 says it itself:
`0007-0005` is number 7, and a release that knows number 5 can work with it. Alembic takes no dash in a name, so that
script is called `0007_0005`; the database has the dash, which the release before looks for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic takes a tenth of a second to import and is needed only when there is something to migrate.

NEWEST = "0021-0004"
"""The version this release brings a database to; a test compares it with the scripts."""
_LATER = re.compile(r"\d{4}-(?P<oldest>\d{4})")


def _config(connection: Connection | None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def current(connection: Connection) -> str | None:
    """The version the database is at; None when it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def newest() -> str:
    """The version this release brings it to."""
    return NEWEST


def known(revision: str) -> bool:
    """Whether this release knows a version; it does not know those of a later release."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config(None))
    return any(_stored(each.revision) == revision for each in script.walk_revisions())


def runs_on(revision: str) -> bool:
    """Whether this release can work on a version that it does not know, by what that says of itself."""
    said = _LATER.fullmatch(revision)
    return said is not None and said["oldest"] <= NEWEST[:4]


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the database to the newest version, or to an earlier one that it has not reached."""
    from alembic import command

    _rename(connection, "-", "_")
    command.upgrade(_config(connection), to)
    _rename(connection, "_", "-")


def _stored(script: str) -> str:
    """A script's name as the database has it."""
    return script.replace("_", "-")


def _rename(connection: Connection, old: str, new: str) -> None:
    if current(connection) is not None:
        change = text("UPDATE alembic_version SET version_num = replace(version_num, :old, :new)")
        connection.execute(change, {"old": old, "new": new})
