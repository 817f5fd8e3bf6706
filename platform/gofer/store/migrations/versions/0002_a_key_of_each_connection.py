"""A data key of each connection: what came in and belongs to no conversation is kept as well.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("connection", sa.Column("data_key", sa.LargeBinary(), nullable=True))
    noted = sa.text("conversation_id IS NULL AND sealed IS NOT NULL")
    op.create_index(
        "delivery_noted",
        "delivery",
        ["received_at"],
        unique=False,
        sqlite_where=noted,
        postgresql_where=noted,
    )
