"""What a process of a test run keeps from one test to the next, as a server does that has run for a while."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import sys
from typing import Any

import httpcore2
import structlog
import uvloop
from sqlalchemy import Connection, Engine, event
from sqlalchemy.util import LRUCache

from gofer.agent.tools import registry


@functools.cache
def share_compiled_statements() -> None:
    """Compile each statement once for each kind of database.

    Every test opens a store of its own, and SQLAlchemy keeps what it compiled with the store's engine and dialect:
    a sixth of a run's time went into compiling the same few hundred statements anew.
    """
    kept: dict[tuple[Any, ...], tuple[Any, LRUCache[Any, Any]]] = {}

    @event.listens_for(Engine, "engine_connect")
    def _share(connection: Connection) -> None:
        dialect: Any = connection.dialect
        # What a compiled statement takes from its dialect besides the language: how JSON is written and read.
        kind = (type(dialect), dialect._json_serializer, dialect._json_deserializer)
        connection.dialect, compiled = kept.setdefault(kind, (dialect, LRUCache[Any, Any](2000)))
        connection.execution_options(compiled_cache=compiled)


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


def new_loop() -> asyncio.AbstractEventLoop:
    """As `gofer serve` makes it; a sixth faster than asyncio's own."""
    return uvloop.new_event_loop()


def log_plainly() -> None:
    """Tracebacks as Python writes them, as `set_up_logs` has it too: structlog's own default colours and frames
    them, which takes longer than most tests."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
