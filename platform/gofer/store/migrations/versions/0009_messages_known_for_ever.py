"""A keyed digest of the service's own id of each message, by which a repeat is known for ever.

Revision ID: 0009_0004
Revises: 0008_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_0004"
down_revision = "0008_0004"


def upgrade() -> None:
    op.add_column("delivery", sa.Column("message_digest", sa.String(), nullable=True))
    known = sa.text("message_digest IS NOT NULL")
    op.create_index(
        "delivery_by_message",
        "delivery",
        ["connection_id", "message_digest"],
        unique=True,
        sqlite_where=known,
        postgresql_where=known,
    )
