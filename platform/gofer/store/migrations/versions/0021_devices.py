"""Devices of the gateway protocol.

Revision ID: 0021_0004
Revises: 0020_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021_0004"
down_revision = "0020_0004"


def upgrade() -> None:
    op.create_table(
        "device",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("member_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scopes", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("paired_at", sa.Float(), nullable=True),
        sa.Column("used_at", sa.Float(), nullable=True),
        sa.Column("mac", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["member_id"], ["member.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_device_member_id"), "device", ["member_id"])
