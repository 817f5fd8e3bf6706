"""An index of strangers' messages: how many of one author were looked up within the hour.

Revision ID: 0010_0004
Revises: 0009_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_0004"
down_revision = "0009_0004"


def upgrade() -> None:
    strangers = sa.text("trust = 'stranger'")
    op.create_index(
        "message_of_stranger",
        "message",
        ["connection_id", "author", "admitted_at"],
        unique=False,
        sqlite_where=strangers,
        postgresql_where=strangers,
    )
