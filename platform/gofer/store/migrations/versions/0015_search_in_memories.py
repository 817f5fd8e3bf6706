"""The sealed index of memories.

Revision ID: 0015_0004
Revises: 0014_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_0004"
down_revision = "0014_0004"


def upgrade() -> None:
    op.create_table(
        "memory_index",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("scope_id", sa.String(), nullable=False),
        sa.Column("documents", sa.Integer(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("upto_seq", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("memory_index_by_scope", "memory_index", ["scope_id"], unique=True)
    op.create_table(
        "memory_posting",
        sa.Column("index_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("index_id", "term", "block"),
        sqlite_with_rowid=False,
    )
    op.add_column("memory", sa.Column("indexed", sa.Boolean(), server_default=sa.false(), nullable=False))
    waiting = sa.text("NOT indexed")
    op.create_index(
        "memory_to_index",
        "memory",
        ["scope_id"],
        unique=False,
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
