"""What is remembered beyond a run: memories and their versions.

Revision ID: 0013_0004
Revises: 0012_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_0004"
down_revision = "0012_0004"


def upgrade() -> None:
    op.create_table(
        "memory",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("scope_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=True),
        sa.Column("message_seq", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("gist", sa.LargeBinary(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("valid_from", sa.Float(), nullable=False),
        sa.Column("valid_to", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", "version"),
    )
    in_force = sa.text("valid_to IS NULL")
    op.create_index(
        "memory_in_force",
        "memory",
        ["scope_id", "kind", "id"],
        unique=False,
        sqlite_where=in_force,
        postgresql_where=in_force,
    )
    op.create_index("memory_of_conversation", "memory", ["conversation_id"], unique=False)
