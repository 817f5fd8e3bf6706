"""The database's clock as an SQL expression, so that leases and schedules never depend on a worker's own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now(FunctionElement[float]):
    """Seconds since 1970."""

    type = Float()
    inherit_cache = True


@compiles(now, "postgresql")
def _postgresql(element: now, compiler: Any, **kwargs: Any) -> str:
    return "extract(epoch FROM clock_timestamp())::float8"


@compiles(now, "sqlite")
def _sqlite(element: now, compiler: Any, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
