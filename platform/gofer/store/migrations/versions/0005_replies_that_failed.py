"""Which deliver job gave a reply up, so that redriving the job sends the reply again.

Revision ID: 0005_0004
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_0004"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("reply", sa.Column("failed_in", sa.BigInteger(), nullable=True))
    given_up = sa.text("failed_in IS NOT NULL")
    op.create_index(
        "reply_failed_in",
        "reply",
        ["failed_in"],
        unique=False,
        sqlite_where=given_up,
        postgresql_where=given_up,
    )
