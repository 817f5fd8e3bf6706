"""Questions to the store that the API and the dashboard share: one module per noun, one function per question."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Select, Table, select

from gofer.store import tables  # not its names: modules of this package have the same ones
from gofer.store.row_macs import MAC

NEVER_SHOWN = ("sealed", "data_key", MAC)


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
