"""Whether a conversation is private: nobody but one person and Gofer reads it.

Revision ID: 0012_0004
Revises: 0011_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_0004"
down_revision = "0011_0004"


def upgrade() -> None:
    op.add_column("conversation", sa.Column("private", sa.Boolean(), nullable=True))
