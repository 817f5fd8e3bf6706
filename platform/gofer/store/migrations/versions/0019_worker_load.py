"""What an agent's workers have to do.

Revision ID: 0019_0004
Revises: 0018_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_0004"
down_revision = "0018_0004"


def upgrade() -> None:
    op.add_column("agent", sa.Column("load", sa.JSON(), nullable=True))
