"""Scopes of tokens per noun, and when a session's owner last proved who they are.

Revision ID: 0006_0004
Revises: 0005_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_0004"
down_revision = "0005_0004"


def upgrade() -> None:
    op.add_column("api_token", sa.Column("scopes", sa.String(), nullable=True))
    op.add_column("web_session", sa.Column("confirmed_at", sa.Float(), nullable=True))
