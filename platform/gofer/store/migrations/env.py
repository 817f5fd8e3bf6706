"""Alembic's entry: run on the connection it was handed."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from gofer.store.tables import metadata

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    # The caller's transaction is the migration's: all of it or none.
    transactional_ddl=False,
)
context.run_migrations()
