"""How many replies of a conversation were pruned, so that clients can know the others by their number.

Revision ID: 0018_0004
Revises: 0017_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_0004"
down_revision = "0017_0004"


def upgrade() -> None:
    op.add_column("conversation", sa.Column("pruned_replies", sa.BigInteger(), nullable=True))
