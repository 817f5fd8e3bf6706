"""What the endpoints share: who they speak for, what was asked, how it is answered."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import ColumnElement, Connection, Select, Table
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gofer.errors import Malformed
from gofer.platform import Platform
from gofer.store.open import FIRST_WORKSPACE
from gofer.strict_json import load_json

BY = "command line"
"""Who did it, in the event log."""

WORKSPACE = FIRST_WORKSPACE

MOST_ROWS = 1000

Q = TypeVar("Q", bound="Question")


class Question(BaseModel):
    """A request's body or query; what it does not know it refuses."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def platform_of(request: Request) -> Platform:
    """The platform the app was built for."""
    platform: Platform = request.app.state.platform
    return platform


async def asked(request: Request, kind: type[Q]) -> Q:
    """The JSON body as a model; raises Malformed."""
    body = await request.body()
    return _checked(kind, load_json(body) if body else {})


def queried(request: Request, kind: type[Q]) -> Q:
    """The query string as a model; raises Malformed."""
    return _checked(kind, dict(request.query_params))


def _checked(kind: type[Q], value: Any) -> Q:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"{name}: {first['msg']}." if name else f"{first['msg']}.") from None


def answered(request: Request, value: Any, status: int = 200) -> Response:
    """JSON with every known secret masked."""
    return JSONResponse(platform_of(request).redactor.redact_value(value), status)


def without(table: Table, *names: str) -> list[ColumnElement[Any]]:
    """A table's columns but for some: nothing sealed leaves by accident."""
    return [column for column in table.columns if column.name not in ("sealed", "data_key", *names)]


def rows(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A query's rows as JSON objects."""
    return [dict(row._mapping) for row in connection.execute(query)]
