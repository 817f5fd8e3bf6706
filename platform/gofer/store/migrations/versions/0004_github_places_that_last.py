"""What a place is for ever, beside what it is called.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("binding", sa.Column("lasting", sa.String(), nullable=True))
    known = sa.text("lasting IS NOT NULL")
    op.create_index(
        "binding_by_lasting",
        "binding",
        ["connection_id", "lasting"],
        unique=False,
        sqlite_where=known,
        postgresql_where=known,
    )
