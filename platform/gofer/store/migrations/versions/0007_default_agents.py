"""A default agent for each connection, and routes in the order in which they are tried.

Revision ID: 0007_0004
Revises: 0006_0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_0004"
down_revision = "0006_0004"


def upgrade() -> None:
    op.add_column("route", sa.Column("kind", sa.String(), nullable=False, server_default="route"))
    op.add_column("route", sa.Column("rank", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("connection", sa.Column("agent", sa.String(), nullable=True))
