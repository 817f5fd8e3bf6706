"""What the rest of Gofer knows of a database: two ways to run a function over a connection.

Each operation ("verb") is a plain function over a SQLAlchemy `Connection` that does its whole transaction. SQLite
runs it in the writer thread inside a group commit, Postgres on a pooled connection through `run_sync`; so
read-modify-write is atomic on both and there is one code path to read. A verb may be run again after a failed
commit: it must do nothing but talk to its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from gofer.store.row_macs import Signing

T = TypeVar("T")
P = ParamSpec("P")

Dialect = Literal["sqlite", "postgresql"]
DIALECTS: tuple[str, ...] = ("sqlite", "postgresql")


class Database(Protocol):
    """A store that can run verbs."""

    dialect: Dialect
    signing: Signing
    """What its rows are signed with; every connection that runs a verb knows it."""

    async def start(self) -> None:
        """Open it; raises ConfigError or StoreError, which say what to do."""

    async def close(self) -> None:
        """Finish what is queued, then close."""

    async def write(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb with these arguments in a transaction of its own; it is durable when this returns."""

    async def write_one(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb of a single statement, which needs no transaction around it: two round trips less."""

    async def read(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb that only reads, over one consistent view."""
