"""An index of what pruning has to look at: rows that are kept for their digests alone are not in it.

Revision ID: 0011_0004
Revises: 0010_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_0004"
down_revision = "0010_0004"


def upgrade() -> None:
    has_more = sa.text("message_digest IS NULL OR sealed IS NOT NULL")
    op.create_index(
        "delivery_to_prune",
        "delivery",
        ["received_at"],
        unique=False,
        sqlite_where=has_more,
        postgresql_where=has_more,
    )
    op.drop_index("delivery_by_time", "delivery")
