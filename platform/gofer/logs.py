"""Logs: one line per thing that happened, on stderr, masked before it is rendered."""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import MutableMapping
from typing import Any

import structlog

from gofer.settings import Settings
from gofer.vault.redaction import Redactor

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys, or what turns a line around."""

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

QUIET = {"uvicorn": logging.WARNING, "alembic": logging.WARNING, "httpx2": logging.WARNING}
"""Libraries that tell more than a person wants to know."""


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


def set_up_logs(settings: Settings, redactor: Redactor, recent: RecentLines | None = None) -> None:
    """Send our lines and those of the libraries through the same steps: ids, time, mask, form."""
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
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _set_up_libraries(level, shared, renderer)


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


def _set_up_libraries(level: int, shared: list[Any], renderer: Any) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(max(level, quiet))
