"""Logs: one line per thing that happened, on stderr or in a file, masked before it is rendered.

Where a person watches the terminal, the lines go to a file and only warnings are shown: a link that was printed should
not scroll away.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import structlog

from gofer.settings import Settings
from gofer.vault.redaction import Redactor

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys, or what turns a line around."""

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

QUIET = {
    "uvicorn": logging.WARNING,
    "alembic": logging.WARNING,
    "httpx2": logging.WARNING,
    "python_multipart": logging.ERROR,  # a warning for each malformed form, which anybody may send
    "mcp": logging.WARNING,
    "mcp.client": logging.CRITICAL,  # a traceback for each server that fails, of which we tell in a line of our own
}
"""Libraries that tell more than a person wants to know."""


OURS = "gofer"
"""The name of our own lines among those of the libraries."""
RENDERED = "gofer_line"
MAX_FILE = 10 * 1024 * 1024
MAX_LINE = 200
"""Characters of a warning on a terminal."""


class RecentLines:
    """The last lines of this process, for whoever looks at them in the dashboard."""

    def __init__(self, most: int = 1000) -> None:
        self.lines: deque[dict[str, Any]] = deque(maxlen=most)

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """A structlog processor; it belongs after the mask."""
        self.lines.append(dict(event))
        return event


def set_up_logs(
    settings: Settings, redactor: Redactor, recent: RecentLines | None = None, *, to_file: bool = False
) -> None:
    """Send our lines and those of the libraries through the same steps: ids, time, mask, form.

    With `to_file` the settings' log file has every line, and stderr only what is at least a warning.
    """
    level = LEVELS[settings.log_level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Tracebacks become text here, without local variables, so that the mask covers them.
        structlog.processors.format_exc_info,
        redactor,
        _inert,
        *([recent] if recent is not None else []),
    ]
    renderer = _renderer(settings)
    factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if to_file:
        shared.append(_warn_on_terminal)
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
        handler = _file(settings.log_path)
        file_logger = _FileLogger(handler)
        factory = lambda *_: file_logger  # noqa: E731 - what structlog calls for each logger
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )
    _set_up_libraries(level, shared, renderer, handler)


def goes_to_file(settings: Settings) -> bool:
    """Whether a process that somebody started keeps its log in a file."""
    return settings.log_to == "file" or (settings.log_to == "auto" and sys.stderr.isatty())


def _file(path: Path) -> logging.Handler:
    """A file that this user alone can read, with four older ones beside it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return RotatingFileHandler(path, maxBytes=MAX_FILE, backupCount=4, encoding="utf-8")


class _FileLogger:
    """What structlog writes our lines with: through the handler, which changes files when one is full."""

    def __init__(self, handler: logging.Handler) -> None:
        self._handler = handler

    def msg(self, line: str) -> None:
        self._handler.handle(logging.LogRecord(OURS, logging.INFO, "", 0, line, None, None))

    debug = info = warning = error = critical = exception = log = msg


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Renders the lines of libraries; ours come rendered."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == OURS:
            return str(record.msg)
        # A rotating file asks for the line twice: to see whether it still fits, and to write it.
        rendered = record.__dict__
        if RENDERED not in rendered:
            rendered[RENDERED] = super().format(record)
        return str(rendered[RENDERED])


def _warn_on_terminal(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """One short line for a person; the file has the rest."""
    if event.get("level") in ("warning", "error", "critical"):
        facts = " ".join(
            f"{name}={value}"
            for name, value in event.items()
            if name not in ("event", "level", "timestamp", "exception")
        )
        line = f"{event['level']}: {event.get('event', '')} {facts}".strip()
        sys.stderr.write((line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} …") + "\n")
    return event


def _inert(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A stranger's words come into lines by way of errors and addresses, and lines to a terminal."""
    for name, value in event.items():
        if isinstance(value, str) and _ACTING.search(value):
            event[name] = _ACTING.sub("�", value)
    return event


def _renderer(settings: Settings) -> Any:
    plain = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    if plain:
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


def _set_up_libraries(level: int, shared: list[Any], renderer: Any, handler: logging.Handler) -> None:
    handler.setFormatter(
        _Formatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(max(level, quiet))
