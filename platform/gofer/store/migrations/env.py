"""Alembic's entry: run on the connection it was handed."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection
from sqlmodel import SQLModel

from gofer.store import tables  # noqa: F401 - fills the metadata

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    # The caller's transaction is the migration's: all of it or none.
    transactional_ddl=False,
)
context.run_migrations()
