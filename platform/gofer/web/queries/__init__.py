"""Questions to the store that the API and the dashboard share: one module per noun, one function per question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Select, Table, select
from starlette.requests import Request

from gofer.app import Platform
from gofer.store import tables  # not its names: modules of this package have the same ones
from gofer.store.row_macs import MAC
from gofer.web.auth import visitor_of

T = TypeVar("T")
NEVER_SHOWN = ("sealed", "data_key", MAC)


def platform_of(request: Request) -> Platform:
    """The platform that the app was built for."""
    platform: Platform = request.app.state.platform
    return platform


async def read_for(request: Request, verb: Callable[..., T], **values: Any) -> T:
    """Run a verb that only reads, with the vault and with whoever asks."""
    platform = platform_of(request)
    return await platform.database.read(verb, vault=platform.vault, visitor=visitor_of(request), **values)


async def write_for(request: Request, verb: Callable[..., T], **values: Any) -> T:
    """The same for a verb that changes something."""
    platform = platform_of(request)
    return await platform.database.write(verb, vault=platform.vault, visitor=visitor_of(request), **values)


def without(table: Table, *names: str) -> list[Column[Any]]:
    """A table's columns except some; sealed columns are always left out."""
    return [column for column in table.columns if column.name not in (*NEVER_SHOWN, *names)]


def rows(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A query's rows as dictionaries, without their MAC."""
    return [
        {name: value for name, value in row._mapping.items() if name != MAC}
        for row in connection.execute(query)
    ]


def agent_names(connection: Connection) -> dict[str, str]:
    """Every agent's name by its id."""
    return _names(connection, tables.agents)


def connection_names(connection: Connection) -> dict[str, str]:
    """Every connection's name by its id."""
    return _names(connection, tables.connections)


def _names(connection: Connection, table: Table) -> dict[str, str]:
    return {row.id: row.name for row in connection.execute(select(table.c.id, table.c.name))}
