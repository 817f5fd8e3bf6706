"""Spending for work that nobody waits for.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("spend", sa.Column("background", sa.Boolean(), nullable=False, server_default=sa.false()))
