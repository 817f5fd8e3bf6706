"""Goals and tasks, and jobs that wait for other jobs.

Revision ID: 0016_0004
Revises: 0015_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_0004"
down_revision = "0015_0004"


def upgrade() -> None:
    op.create_table(
        "goal",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=True),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("participant_id", sa.String(), nullable=False),
        sa.Column("asked_by", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("narrowed", sa.Boolean(), nullable=False),
        sa.Column("message_seq", sa.BigInteger(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("budget", sa.BigInteger(), nullable=True),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Float(), nullable=True),
        sa.Column("replans", sa.Integer(), nullable=False),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("event_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.Column("mac", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversation.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspace.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("goal_of_conversation", "goal", ["conversation_id", "created_at"])
    _partial("goal_under_way", "goal", ["agent_id"], "finished_at IS NULL")
    op.create_table(
        "task",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("goal_id", sa.String(), nullable=True),
        sa.Column("parent_job_id", sa.BigInteger(), nullable=True),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("needs", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["conversation_id"], ["conversation.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["goal_id"], ["goal.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspace.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    _partial("task_of_goal", "task", ["goal_id", "number"], "goal_id IS NOT NULL")
    op.create_index("task_of_run", "task", ["parent_job_id", "call_id", "number"], unique=True)
    op.create_index("task_of_conversation", "task", ["conversation_id", "created_at"])
    _partial("task_unfinished", "task", ["agent_id", "state"], "finished_at IS NULL")
    op.add_column("job", sa.Column("parent_id", sa.BigInteger(), nullable=True))
    _partial("job_of_parent", "job", ["parent_id"], "parent_id IS NOT NULL")
    op.add_column("spend", sa.Column("goal_id", sa.String(), nullable=True))
    _partial("spend_of_goal", "spend", ["goal_id"], "goal_id IS NOT NULL")


def _partial(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=False, sqlite_where=where, postgresql_where=where)
