"""What a process of a test run keeps from one test to the next, as a server does that has run for a while."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import sys
from typing import Any

import httpcore2
import structlog
import uvloop
from jinja2 import Environment
from jinja2.bccache import Bucket, BytecodeCache
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import CompileError
from sqlalchemy.util import LRUCache

from gofer.agent.tools import registry
from gofer.store import fast_sql
from gofer.store.postgres import PostgresDatabase
from gofer.web.dashboard import render
from gofer.web.static_files import StaticFiles


class Compiled:
    """The statements that were compiled for one kind of database."""

    def __init__(self, dialect: Any) -> None:
        self.dialect = dialect
        self.statements: LRUCache[Any, Any] = LRUCache(2000)


_compiled: dict[tuple[Any, ...], Compiled] = {}


def _of_kind(dialect: Any) -> Compiled:
    # What a compiled statement takes from its dialect besides the language: how JSON is written and read.
    kind = (type(dialect), dialect._json_serializer, dialect._json_deserializer)
    return _compiled.setdefault(kind, Compiled(dialect))


@functools.cache
def share_compiled_statements() -> None:
    """Compile each statement once for each kind of database.

    Every test opens a store of its own, and SQLAlchemy keeps what it compiled with the store's engine and dialect:
    a sixth of a run's time went into compiling the same few hundred statements anew.
    """

    @event.listens_for(Engine, "engine_connect")
    def _share(connection: Connection) -> None:
        own: Any = connection.dialect
        kept = _of_kind(own)
        if not hasattr(kept.dialect, "server_version_info"):  # it has never seen a server
            vars(kept.dialect).update({**vars(own), "_type_memos": kept.dialect._type_memos})
        connection.dialect = kept.dialect
        connection.execution_options(compiled_cache=kept.statements)


def compile_for_postgres() -> None:
    """Compile for PostgreSQL what was compiled for SQLite, but for what only SQLite understands."""
    dialect = PostgresDatabase("postgresql://nowhere")._engine.sync_engine.dialect
    here = _of_kind(dialect)
    for other in [kept for kept in _compiled.values() if kept is not here]:
        for (_, _, columns, _, many), compiled in list(other.statements.items()):
            with contextlib.suppress(CompileError, AttributeError):
                compiled.statement._compile_w_cache(
                    here.dialect,
                    compiled_cache=here.statements,
                    column_keys=list(columns),
                    for_executemany=many,
                )
    for statement, forms in list(fast_sql._cache.items()):
        for form in list(forms):
            with contextlib.suppress(CompileError, AttributeError, AssertionError):
                inserted = None if isinstance(form, str) else form[1:]
                values = dict.fromkeys(inserted or ())
                fast_sql._compiled(here, statement, values)  # type: ignore[arg-type]


@functools.cache
def share_tls_defaults() -> None:
    """Read the certificates of the world's authorities once: every client of HTTP made anew did, for loopback too."""
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)


def share_entry_points() -> None:
    """Look for plugins' tools once for each path: every platform opened anew reads a file of each installed package."""

    @functools.cache
    def found(path: tuple[str, ...], group: str) -> Any:
        return importlib.metadata.entry_points(group=group)

    registry.entry_points = lambda *, group: found(tuple(sys.path), group)  # type: ignore[assignment, attr-defined]


class _CompiledTemplates(BytecodeCache):
    """Keeps them in memory."""

    def __init__(self) -> None:
        self._compiled: dict[str, Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._compiled.get(bucket.key + bucket.checksum)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._compiled[bucket.key + bucket.checksum] = bucket.code


@functools.cache
def share_compiled_templates() -> None:
    """Compile each page once: every server of the tests made each of its pages anew, for longer than it took to fill
    and send them."""
    vars(render)["Environment"] = functools.partial(Environment, bytecode_cache=_CompiledTemplates())


def compile_templates() -> None:
    """Compile every page, for all processes that are forked from this one."""
    share_compiled_templates()
    environment = render.Renderer(StaticFiles(), timezone="UTC")._environment
    for name in environment.list_templates():
        environment.get_template(name)


def new_loop() -> asyncio.AbstractEventLoop:
    """As `gofer serve` makes it; a sixth faster than asyncio's own."""
    return uvloop.new_event_loop()


def log_plainly() -> None:
    """Tracebacks as Python writes them, as `set_up_logs` has it too: structlog's own default colours and frames
    them, which takes longer than most tests."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
