"""What heartbeats find, and where they are muted.

Revision ID: 0017_0004
Revises: 0016_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_0004"
down_revision = "0016_0004"


def upgrade() -> None:
    op.create_table(
        "heartbeat_finding",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("recommendation", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("found_at", sa.Float(), nullable=False),
        sa.Column("settled_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversation.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("heartbeat_finding_once", "heartbeat_finding", ["key"], unique=True)
    op.create_index(
        "heartbeat_finding_in_conversation", "heartbeat_finding", ["conversation_id", "settled_at"]
    )
    op.create_index("heartbeat_finding_of_agent", "heartbeat_finding", ["agent_id", "found_at"])
    op.create_index("heartbeat_finding_of_subject", "heartbeat_finding", ["agent_id", "subject", "found_at"])
    op.create_index("heartbeat_finding_of_job", "heartbeat_finding", ["job_id"])
    op.add_column("participant", sa.Column("muted_at", sa.Float(), nullable=True))
