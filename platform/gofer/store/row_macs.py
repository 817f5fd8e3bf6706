"""Rows that decide who may do what, each with a MAC over what it says and where it stands.

Whoever can write to the database but has no master key can change such a row, insert one or move one from another
table; none of it takes effect, because the row is looked at with `fits` when it is used. What was refused is logged,
becomes an event, and `gofer rows list` shows it.

One list says which tables are signed (`TABLES`) and which of their columns are not (`FREE`). Rows are written with
`insert` and `update` of this module; plain updates are for free columns only.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias

import structlog
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Row,
    Table,
    bindparam,
    select,
    tuple_,
)

from gofer.errors import ConfigError
from gofer.store.tables import (
    agents,
    api_tokens,
    connections,
    devices,
    goals,
    identities,
    members,
    pairings,
    principals,
    questions,
    routes,
    runtimes,
    schedules,
    shells,
    sign_in_links,
    web_sessions,
)
from gofer.vault.envelope import MacKey, MacKeys, Part, Vault
from gofer.vault.errors import VaultError

log = structlog.get_logger()

AnyRow: TypeAlias = Row[*tuple[Any, ...]]

TABLES: tuple[Table, ...] = (
    members,
    web_sessions,
    api_tokens,
    devices,
    sign_in_links,
    principals,
    identities,
    pairings,
    connections,
    agents,
    routes,
    schedules,
    questions,
    shells,
    goals,
    runtimes,
)

FREE: dict[str, frozenset[str]] = {
    "member": frozenset({"signed_in_at"}),
    "web_session": frozenset({"seen_at"}),
    "api_token": frozenset({"used_at"}),
    "device": frozenset({"used_at"}),
    "connection": frozenset({"data_key"}),
    "agent": frozenset({"load"}),
    "schedule": frozenset({"next_at"}),
    "question": frozenset({"sealed", "choices", "answer", "answered_at"}),
    "shell": frozenset({"used_at"}),
    "goal": frozenset(
        {"sealed", "state", "reason", "spent", "replans", "job_id", "event_seq", "changed_at", "finished_at"}
    ),
    "runtime": frozenset(
        {
            "host",
            "program",
            "session",
            "can_resume",
            "can_spawn",
            "reported",
            "seen_at",
            "active_at",
            "crashes",
        }
    ),
}
"""Columns that are not signed: times that only inform, and bytes that their own encryption binds to the row."""

ADDED: dict[str, dict[str, Any]] = {}
"""Columns that came later, with what older rows have in them. That value is left out of what is signed, as NULL is, so
that a row from before keeps its MAC."""

MAC = "mac"
_PAGE = 500
_REPORT_EVERY = 600.0
"""Seconds after which the same row is reported again."""
_MAX_KNOWN = 10_000
_MAX_UNWRITTEN = 1_000
_NO_KEY = "no key to sign with: call Signing.use first"
_DOUBLE = struct.Struct(">d").pack
_ODD = (TypeError, ValueError, OverflowError, struct.error)
"""What a value raises that no column of its kind has. SQLite keeps any value in any column, so whoever writes to it can
put a text where a number is, or what is no JSON."""


class RowRefused(VaultError):
    """A row that decides who may do what was changed by somebody else than Gofer."""

    code = "row.refused"
    status = 409

    def __init__(self, table: str, key: str) -> None:
        super().__init__(
            f"The row {key} of the table {table} is refused: its signature is missing or wrong, so somebody else than "
            f"this release of Gofer wrote it. See `gofer rows list`; to accept it: gofer rows accept {table} {key}"
        )
        self.table = table
        self.key = key


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row whose MAC is missing or wrong."""

    table: str
    key: str
    """Its primary key; several parts are joined by a slash."""


class Signing:
    """What a database's rows are signed with, and what was refused lately. Safe to share between threads."""

    def __init__(self) -> None:
        self._key: MacKey | None = None
        self._audit: MacKey | None = None
        self.vault: Vault | None = None
        """What opens words where they decide who somebody is: a row's own columns are not signed there."""
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], None] = {}
        """Hot rows whose MAC was checked before, so that a message does not pay for the MACs of the routes it takes."""
        self._told: dict[RefusedRow, float] = {}
        self._unwritten: list[RefusedRow] = []

    def use(self, keys: MacKeys, vault: Vault) -> None:
        """Sign and check with these keys from here on."""
        self.vault = vault
        self._key = keys.key("row")
        self._audit = keys.key("audit")
        self._known.clear()

    @property
    def audit_key(self) -> MacKey:
        """What signs the audit log."""
        if self._audit is None:
            raise RuntimeError(_NO_KEY)
        return self._audit

    def mac(self, parts: tuple[Part, ...]) -> bytes:
        return self._ready().mac(*parts)

    def fits(self, mac: bytes | None, parts: tuple[Part, ...]) -> bool:
        return self._ready().fits(mac, *parts)

    def knows(self, seen: tuple[Any, ...]) -> bool:
        return seen in self._known

    def know(self, seen: tuple[Any, ...]) -> None:
        with self._lock:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[seen] = None

    def alarm(self, row: RefusedRow) -> None:
        """Tell of a refused row: in the log at once, in the events with the next note."""
        with self._lock:
            current = time.monotonic()
            if current - self._told.get(row, -_REPORT_EVERY) < _REPORT_EVERY:
                return
            if len(self._told) >= _MAX_UNWRITTEN:
                self._told.clear()
            self._told[row] = current
            if len(self._unwritten) < _MAX_UNWRITTEN:
                self._unwritten.append(row)
        log.error("row.refused", table=row.table, key=row.key, fix=f"gofer rows accept {row.table} {row.key}")

    def take_unwritten(self) -> list[RefusedRow]:
        """What was refused since the last time."""
        with self._lock:
            taken, self._unwritten = self._unwritten, []
        return taken

    def _ready(self) -> MacKey:
        if self._key is None:
            raise RuntimeError(_NO_KEY)
        return self._key


def signing_of(connection: Connection) -> Signing:
    """What a connection's database signs with."""
    found: Signing = connection.get_execution_options()["signing"]
    return found


def insert(connection: Connection, table: Table, values: Mapping[str, Any]) -> AnyRow:
    """Insert a row and sign it; returns it as it is stored."""
    row = connection.execute(table.insert().values(**values).returning(*table.c)).one()
    _sign(connection, table, [row])
    return row


def update(
    connection: Connection, table: Table, where: ColumnElement[bool], values: Mapping[str, Any]
) -> list[AnyRow]:
    """Change rows and sign them anew; returns them as they are stored. Raises RowRefused, and changes nothing, when one
    of them was not rightly signed: its new MAC would make right what somebody else wrote."""
    for row in connection.execute(select(table).where(where).with_for_update()).all():
        require(connection, table, row)
    rows = list(connection.execute(table.update().where(where).values(**values).returning(*table.c)))
    _sign(connection, table, rows)
    return rows


def fits(connection: Connection, table: Table, row: Any) -> bool:
    """Whether a row (whole, or with more columns than its table's) is rightly signed. If not, the alarm is raised."""
    if _fits(signing_of(connection), table, row):
        return True
    signing_of(connection).alarm(RefusedRow(table.name, key_of(table, row)))
    return False


def require(connection: Connection, table: Table, row: Any) -> None:
    """Raises RowRefused unless a row is rightly signed."""
    if not fits(connection, table, row):
        raise RowRefused(table.name, key_of(table, row))


def fits_as_before(connection: Connection, table: Table, row: Any) -> bool:
    """`fits` for a row that every message takes: one that was found right is not looked at again until it changes.

    The row is a named tuple with the table's columns among its own.
    """
    signing = signing_of(connection)
    seen = (table.name, _contents(table)(row))
    if signing.knows(seen):
        return True
    if not fits(connection, table, row):
        return False
    signing.know(seen)
    return True


def find_refused(connection: Connection, *, limit: int) -> list[RefusedRow]:
    """Rows that would be refused, without an alarm; questions that were answered decide nothing any more."""
    found: list[RefusedRow] = []
    signing = signing_of(connection)
    for table in TABLES:
        for key, row in _looked_at(connection, table):
            if row is None or not _fits(signing, table, row):
                found.append(RefusedRow(table.name, key))
                if len(found) >= limit:
                    return found
    return found


def still_refused(connection: Connection, rows: list[RefusedRow]) -> list[RefusedRow]:
    """Those of the rows that are there and still not rightly signed."""
    signing = signing_of(connection)
    by_name = {table.name: table for table in TABLES}
    found = []
    for each in rows:
        table = by_name.get(each.table)
        if table is None:
            continue
        try:
            row = row_of(connection, each)
        except RowRefused:
            found.append(each)
        else:
            if row is not None and not _fits(signing, table, row):
                found.append(each)
    return found


def row_of(connection: Connection, refused: RefusedRow) -> AnyRow | None:
    """The row that a refusal names; None when it is gone. Raises RowRefused when it cannot be read."""
    table = table_named(refused.table)
    try:
        return connection.execute(select(table).where(_has_key(table, refused.key))).one_or_none()
    except _ODD:
        raise RowRefused(refused.table, refused.key) from None


def accept(connection: Connection, refused: RefusedRow) -> None:
    """Sign a row as it is now: somebody has looked at it and means it. Raises ConfigError for one whose values no
    column of ours has."""
    table = table_named(refused.table)
    try:
        row = connection.execute(
            select(table).where(_has_key(table, refused.key)).with_for_update()
        ).one_or_none()
        if row is not None:
            _sign(connection, table, [row])
    except _ODD:
        raise ConfigError(
            f"The row {refused.key} of the table {refused.table} cannot be accepted: it has values that Gofer never "
            "writes, such as a text in the place of a number. Delete it in the database."
        ) from None


def sign_everything(connection: Connection) -> int:
    """Sign every row as it is: once, by the release that begins to sign. Returns how many there were."""
    count = 0
    for table in TABLES:
        for row in _rows(connection, table, all_of_them=True):
            _sign(connection, table, [row])
            count += 1
    return count


def key_of(table: Table, row: Any) -> str:
    """A row's primary key as one text."""
    return "/".join(str(_value(row, column)) for column in table.primary_key)


@cache
def signed_columns(table: Table) -> tuple[Column[Any], ...]:
    """The columns that a table's MAC covers, in a fixed order."""
    left_out = FREE.get(table.name, frozenset()) | {MAC}
    return tuple(
        sorted((column for column in table.c if column.key not in left_out), key=lambda column: column.key)
    )


def parts_of(table: Table, row: Any) -> tuple[Part, ...]:
    """What is signed: the table, and the name and value of every signed column that has one."""
    added = ADDED.get(table.name, {})
    parts: list[Part] = [table.name]
    for column in signed_columns(table):
        value = _value(row, column)
        if value is None or (column.key in added and value == added[column.key]):
            continue
        parts += (column.key, _part(column, value))
    return tuple(parts)


def _fits(signing: Signing, table: Table, row: Any) -> bool:
    try:
        return signing.fits(_value(row, table.c[MAC]), parts_of(table, row))
    except _ODD:
        return False


def _sign(connection: Connection, table: Table, rows: list[AnyRow]) -> None:
    if not rows:
        return
    signing = signing_of(connection)
    here = [column == bindparam(f"key_{column.key}") for column in table.primary_key]
    change = table.update().where(*here).values({MAC: bindparam("new_mac")})
    connection.execute(
        change,
        [
            {
                **{f"key_{column.key}": _value(row, column) for column in table.primary_key},
                "new_mac": signing.mac(parts_of(table, row)),
            }
            for row in rows
        ],
    )


def _rows(connection: Connection, table: Table, *, all_of_them: bool = False) -> Iterator[AnyRow]:
    keys = list(table.primary_key)
    query = select(table).order_by(*keys).limit(_PAGE)
    if table is questions and not all_of_them:
        query = query.where(questions.c.answered_at.is_(None))
    after = query
    while page := connection.execute(after).all():
        yield from page
        last = [_value(page[-1], column) for column in keys]
        after = query.where(tuple_(*keys) > tuple_(*last))


def _looked_at(connection: Connection, table: Table) -> Iterator[tuple[str, AnyRow | None]]:
    """Every row with its key; None in place of one that cannot be read, which must not hide the others."""
    try:
        whole = list(_rows(connection, table))
    except _ODD:
        keys = connection.execute(select(*table.primary_key)).all()
        for each in (RefusedRow(table.name, "/".join(map(str, key))) for key in keys):
            try:
                yield each.key, row_of(connection, each)
            except RowRefused:
                yield each.key, None
    else:
        yield from ((key_of(table, row), row) for row in whole)


def _has_key(table: Table, key: str) -> ColumnElement[bool]:
    columns = list(table.primary_key)
    values = key.split("/", len(columns) - 1)
    values += [""] * (len(columns) - len(values))
    condition: ColumnElement[bool] = tuple_(*columns) == tuple_(*values)
    return condition


def table_named(name: str) -> Table:
    """The signed table of that name."""
    return next(table for table in TABLES if table.name == name)


@cache
def _contents(table: Table) -> Callable[[Any], tuple[Any, ...]]:
    """Takes what is signed, and the MAC, out of a row."""
    return attrgetter(*(column.key for column in signed_columns(table)), MAC)


def _value(row: Any, column: Column[Any]) -> Any:
    mapping = getattr(row, "_mapping", None)
    return mapping[column] if mapping is not None else getattr(row, column.key)


def _part(column: Column[Any], value: Any) -> Part:
    if isinstance(column.type, JSON):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if isinstance(column.type, Float):
        return _DOUBLE(value)
    if isinstance(column.type, Boolean | Integer):
        return int(value)
    return bytes(value) if isinstance(column.type, LargeBinary) else str(value)
