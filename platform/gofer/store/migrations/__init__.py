"""Alembic migrations, the same for both databases, run by Gofer itself at start.

Rules: expand first, contract a release later. A new column is nullable or has a server default; nothing is renamed
or dropped in the release that stops using it, so that the previous release still runs on a migrated database.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config


def current(connection: Connection) -> str | None:
    """The version the database is at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def newest() -> str:
    """The version this release brings it to."""
    head = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert head is not None
    return head


def known(revision: str) -> bool:
    """Whether this release knows a version; it does not know those of a later release."""
    script = ScriptDirectory.from_config(_config(None))
    return any(each.revision == revision for each in script.walk_revisions())


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the database to the newest version, or to an earlier one that it has not reached."""
    command.upgrade(_config(connection), to)
