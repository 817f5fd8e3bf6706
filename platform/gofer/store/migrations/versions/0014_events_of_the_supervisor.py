"""An index of what the supervisor saw: which release ran when.

Revision ID: 0014_0004
Revises: 0013_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_0004"
down_revision = "0013_0004"


def upgrade() -> None:
    kinds = sa.text(
        "kind IN ('worker.spawned', 'worker.exited', 'worker.unhealthy', 'worker.crash_loop', "
        "'revision.started', 'revision.promoted', 'revision.rolled_back')"
    )
    op.create_index(
        "event_of_supervisor", "event", ["id"], unique=False, sqlite_where=kinds, postgresql_where=kinds
    )
