"""Hot statements: written in SQLAlchemy Core, compiled once for each database, and run by its driver.

For a short statement Core costs five to ten times what the driver does, and the engine runs a dozen of them for each
message. A statement given here is a constant of its module; values are bound by name. Rows are named tuples.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, JSON, Connection, Float, Insert, Table, any_, bindparam, func, select
from sqlalchemy.util import await_only

Values = Mapping[str, Any]

_NOTHING: Values = {}
MAX_ROWS = 64


def fetch(connection: Connection, statement: Any, values: Values = _NOTHING) -> list[Any]:
    """Run a statement and return its rows; none for one without RETURNING."""
    compiled = _compiled(connection, statement, values)
    arguments = compiled.arguments(values)
    pooled: Any = connection.connection
    if connection.dialect.name == "postgresql":
        found = await_only(pooled.driver_connection.fetch(compiled.sql, *arguments))
    else:
        cursor = pooled.dbapi_connection.execute(compiled.sql, arguments)
        found = cursor.fetchall() if cursor.description else ()
    # For an insert SQLAlchemy may add a RETURNING of its own, which nobody asked for.
    return compiled.rows(found) if compiled.returns else []


def first(connection: Connection, statement: Any, values: Values = _NOTHING) -> Any:
    """The first row, or None."""
    rows = fetch(connection, statement, values)
    return rows[0] if rows else None


def scalar(connection: Connection, statement: Any, values: Values = _NOTHING) -> Any:
    """The first value of the first row, or None."""
    row = first(connection, statement, values)
    return None if row is None else row[0]


def many(connection: Connection, statement: Any, rows: Sequence[Values]) -> None:
    """Run a statement for each row of values; all of them name the same values."""
    if not rows:
        return
    compiled = _compiled(connection, statement, rows[0])
    arguments = [compiled.arguments(row) for row in rows]
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        await_only(driver.executemany(compiled.sql, arguments))
    elif isinstance(statement, Insert):
        for some in _portions(arguments):
            driver.execute(compiled.for_rows(len(some)), list(chain.from_iterable(some)))
    else:
        driver.executemany(compiled.sql, arguments)


def _portions(rows: list[Any]) -> Iterator[list[Any]]:
    """Split rows into portions of a power of two, so that a few statements do for any number of rows."""
    begin = 0
    while left := len(rows) - begin:
        size = min(1 << (left.bit_length() - 1), MAX_ROWS)
        yield rows[begin : begin + size]
        begin += size


def upsert(dialect: str, table: Table) -> Any:
    """An insert with `on_conflict`. Only the dialect in use is imported."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def among(dialect: str, column: Any, name: str) -> Any:
    """A condition that a column is one of the values bound as a list; `IN` would be another text for each length."""
    if dialect == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(column.type)))
    listed = func.json_each(bindparam(name, type_=JSON)).table_valued("value")
    return column.in_(select(listed.c.value))


class _Compiled:
    """A statement as one driver takes it: the text, how to order the values, how to read a row."""

    def __init__(self, statement: Any, dialect: Any, keys: list[str] | None) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=keys)
        assert not compiled.post_compile_params, "a hot statement has no lists to expand"
        self.sql: str = compiled.string
        self._longer: dict[int, str] = {}
        names: list[str] = list(compiled.positiontup)
        binds = [compiled.binds[name] for name in names]
        self._pick = _picking(names)
        self._given = {
            name: bind.effective_value for name, bind in zip(names, binds, strict=True) if not bind.required
        }
        self._given |= {column.key: column.default.arg for column in compiled.insert_prefetch}
        writers = [bind.type.dialect_impl(dialect).bind_processor(dialect) for bind in binds]
        self._writers = [(place, writer) for place, writer in enumerate(writers) if writer is not None]
        columns = list(statement.exported_columns.items())
        self.returns = bool(columns)
        row: Any = namedtuple("Row", [name for name, _ in columns], rename=True)  # type: ignore[misc]
        # What `_make` does, without the look at the length: the driver gives what was asked for.
        self._make = partial(tuple.__new__, row)
        readers = [_reader(column.type, dialect) for _, column in columns]
        self._readers = [(place, reader) for place, reader in enumerate(readers) if reader is not None]

    def for_rows(self, count: int) -> str:
        """The text of an insert of several rows: one step of SQLite's, in which another thread may run."""
        if count not in self._longer:
            into, values, row = self.sql.partition(" VALUES ")
            assert row.endswith(")"), "an insert of many has nothing behind its values"
            self._longer[count] = into + values + ", ".join([row] * count)
        return self._longer[count]

    def arguments(self, values: Values) -> Sequence[Any]:
        """The values in the order of the text."""
        picked = self._pick({**self._given, **values} if self._given else values)
        if not self._writers:
            return picked
        ordered = list(picked)
        for place, writer in self._writers:
            ordered[place] = writer(ordered[place])
        return ordered

    def rows(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """Named tuples of what the driver returned."""
        return [self._make(self._read(values) if self._readers else values) for values in found]

    def _read(self, values: Sequence[Any]) -> list[Any]:
        read = list(values)
        for place, reader in self._readers:
            read[place] = reader(read[place])
        return read


def _reader(type_: Any, dialect: Any) -> Callable[[Any], Any] | None:
    """The function that reads a column's value. Both drivers return floats, so those need none."""
    if isinstance(type_, Float) and not type_.asdecimal:
        return None
    reader: Callable[[Any], Any] | None = type_.dialect_impl(dialect).result_processor(dialect, None)
    return reader


def _picking(names: list[str]) -> Callable[[Values], Sequence[Any]]:
    """A function that takes the named values out of a mapping, in order."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: [values[name] for name in names]


_cache: dict[Any, dict[Any, _Compiled]] = {}


def _compiled(connection: Connection, statement: Any, values: Values) -> _Compiled:
    """The statement for this database; an insert also depends on which columns are given."""
    forms = _cache.get(statement)
    if forms is None:
        forms = _cache.setdefault(statement, {})
    inserting = isinstance(statement, Insert)
    form = (connection.dialect.name, *values) if inserting else connection.dialect.name
    compiled = forms.get(form)
    if compiled is None:
        compiled = forms[form] = _Compiled(statement, connection.dialect, list(values) if inserting else None)
    return compiled
