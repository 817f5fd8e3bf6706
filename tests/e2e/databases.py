"""A PostgreSQL database for one file of tests or one crash, copied from the migrated template."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from support.async_bridge import Elsewhere
from support.servers import Server, turn

TEMPLATE = "gofer_template"


@contextlib.contextmanager
def copied(server: Server, run_dir: Path, name: str) -> Iterator[str]:
    """Yields its URL, and drops it afterwards whoever is still connected."""
    with turn(run_dir):  # a template must not be in use while it is copied
        _execute(server, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    try:
        yield server.postgres_url(name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(server: Server, statement: str) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(server.postgres_url("postgres"))
        await connection.execute(statement)
        await connection.close()

    # A loop may run already where an asynchronous fixture asks for this.
    with contextlib.closing(Elsewhere()) as elsewhere:
        elsewhere.run(main())
