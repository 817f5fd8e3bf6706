"""MACs of the rows that decide who may do what, and the chain of the audit log.

Revision ID: 0008_0004
Revises: 0007_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_0004"
down_revision = "0007_0004"

SIGNED = (
    "member",
    "web_session",
    "api_token",
    "sign_in_link",
    "principal",
    "identity",
    "pairing",
    "connection",
    "agent",
    "route",
    "schedule",
    "question",
    "shell",
)


def upgrade() -> None:
    for table in SIGNED:
        op.add_column(table, sa.Column("mac", sa.LargeBinary(), nullable=True))
    op.add_column("audit_entry", sa.Column("place", sa.BigInteger(), nullable=True))
    op.add_column("audit_entry", sa.Column("link", sa.LargeBinary(), nullable=True))
    op.add_column("audit_entry", sa.Column("end_mac", sa.LargeBinary(), nullable=True))
    op.create_index("audit_entry_by_place", "audit_entry", ["place"], unique=True)
    op.create_table(
        "audit_head",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("link", sa.LargeBinary(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
