"""The API: everything that can be asked for, as JSON.

On the network it is behind the guard; on the Unix socket of a running server, whose file only its user may open,
and in a command's own process, whoever asks is the owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from gofer.app import Platform
from gofer.errors import GoferError
from gofer.web.api.table import OPERATIONS
from gofer.web.auth import FromSocket
from gofer.web.problems import on_crash, on_gofer_error, on_http_exception
from gofer.web.queries.service_levels import ServiceLevels


def control_app(platform: Platform) -> Starlette:
    """The API for the command line."""
    app = Starlette(
        routes=[api_mount()],
        middleware=[Middleware(FromSocket)],
        exception_handlers={
            GoferError: on_gofer_error,
            HTTPException: on_http_exception,
            Exception: on_crash,
        },
    )
    furnish(app, platform)
    return app


def api_mount(*others: Route) -> Mount:
    """The API's routes, for any app that is furnished."""
    return Mount("/api/v1", routes=[*others, *(operation.route() for operation in OPERATIONS)])


def furnish(app: Starlette, platform: Platform) -> None:
    """Put what the endpoints need into their app."""
    app.state.platform = platform
    app.state.agents_turn = asyncio.Lock()
    app.state.levels = ServiceLevels(platform.database, platform.settings.timezone)
    app.state.watching = Counter()
    app.state.readings = {}
