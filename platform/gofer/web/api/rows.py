"""Rows that are refused because somebody else than Gofer wrote them: list them, and accept some on purpose."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, LargeBinary
from starlette.requests import Request

from gofer.errors import NotFound
from gofer.store import row_macs
from gofer.store.row_macs import RefusedRow
from gofer.web.api.http import RequestModel, platform_of
from gofer.web.auth import note

MAX_LISTED = 200
_HIDDEN = ("password", "digest")


class RowName(RequestModel):
    """The name of a row: its table and its key."""

    table: str = Field(pattern="^[a-z_]{1,60}$", description="Such as member.")
    key: str = Field(
        pattern="^[A-Za-z0-9_./:-]{1,200}$", description="Its primary key, as the list shows it."
    )


class Accept(RequestModel):
    """Which rows to accept, each of which must be refused now."""

    rows: list[RowName] = Field(min_length=1, max_length=MAX_LISTED)


async def index(request: Request) -> dict[str, Any]:
    """List the rows that are refused, with what they say."""
    found = await platform_of(request).database.read(_list)
    return {"rows": found}


async def accept(request: Request, body: Accept) -> dict[str, Any]:
    """Accept refused rows as they are: somebody has looked at them and means them."""
    platform = platform_of(request)
    named = [RefusedRow(each.table, each.key) for each in body.rows]
    done = await platform.database.write(_accept, named=named)
    note(request, rows=[f"{each.table} {each.key}" for each in done])
    await platform.secrets_changed()
    return {"accepted": [{"table": each.table, "key": each.key} for each in done]}


def _list(connection: Connection) -> list[dict[str, Any]]:
    return [
        {"table": each.table, "key": each.key, "says": _row_contents(connection, each)}
        for each in row_macs.find_refused(connection, limit=MAX_LISTED)
    ]


def _row_contents(connection: Connection, refused: RefusedRow) -> dict[str, Any]:
    try:
        row = row_macs.row_of(connection, refused)
    except row_macs.RowRefused:
        return {"unreadable": "It has values that Gofer never writes. Delete it in the database."}
    if row is None:
        return {}
    columns = row_macs.signed_columns(row_macs.table_named(refused.table))
    shown = [each for each in columns if each.key not in _HIDDEN and not isinstance(each.type, LargeBinary)]
    return {each.key: _plain(row._mapping[each]) for each in shown}


def _plain(value: Any) -> Any:
    odd = isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value))
    return repr(value) if odd else value


def _accept(connection: Connection, named: list[RefusedRow]) -> list[RefusedRow]:
    found = row_macs.still_refused(connection, named)
    for each in named:
        if each not in found:
            raise NotFound(f"No row {each.key!r} of {each.table!r} is refused. See: gofer rows list")
        row_macs.accept(connection, each)
    return found
