"""External agents: their runtimes, the hops of their triggers, and what they have acknowledged.

Revision ID: 0020_0004
Revises: 0019_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_0004"
down_revision = "0019_0004"


def upgrade() -> None:
    op.create_table(
        "runtime",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("member_id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("program", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("can_resume", sa.Boolean(), nullable=False),
        sa.Column("can_spawn", sa.Boolean(), nullable=False),
        sa.Column("reported", sa.String(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=True),
        sa.Column("active_at", sa.Float(), nullable=True),
        sa.Column("crashes", sa.JSON(), nullable=False),
        sa.Column("drained_at", sa.Float(), nullable=True),
        sa.Column("callback_url", sa.String(), nullable=False),
        sa.Column("callback_secret", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agent.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("runtime_by_name", "runtime", ["name"], unique=True)
    op.create_index("runtime_of_agent", "runtime", ["agent_id"])
    op.create_table(
        "hop",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("runtime_id", sa.String(), nullable=True),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("covers_to", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("said", sa.String(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("delivered_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversation.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number"),
    )
    waiting = sa.text("state IN ('queued','taken')")
    op.create_index(
        "hop_for_host", "hop", ["host", "deadline"], sqlite_where=waiting, postgresql_where=waiting
    )
    op.create_index("hop_of_agent", "hop", ["agent_id", "created_at"])
    op.create_index("hop_of_conversation", "hop", ["conversation_id", "created_at"])
    op.add_column("participant", sa.Column("ack_seq", sa.BigInteger(), nullable=True))
    op.add_column("participant", sa.Column("blocked_at", sa.Float(), nullable=True))
    op.add_column("participant", sa.Column("blocked_reason", sa.String(), nullable=True))
    op.add_column("participant", sa.Column("unblocked_at", sa.Float(), nullable=True))
    op.add_column("conversation", sa.Column("closed_at", sa.Float(), nullable=True))
