"""The API: everything that can be asked for, as JSON.

On the network it is behind the guard; on the Unix socket of a running server, whose file only its user may open,
and in a command's own process, whoever asks is the owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cached_property

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import Receive, Scope, Send

from gofer.app import Platform
from gofer.errors import GoferError
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
    set_app_state(app, platform)
    return app


def api_mount(*, documented: bool = False) -> Mount:
    """The API's routes, for any app that is furnished; with its OpenAPI document if that is wanted."""
    return Mount("/api/v1", app=_Operations(documented))


class _Operations:
    """The operations of the table. The first request loads them: they are much code, and many servers get none."""

    def __init__(self, documented: bool) -> None:
        self._documented = documented

    @cached_property
    def _router(self) -> Router:
        from gofer.web.api.openapi import document_routes
        from gofer.web.api.table import OPERATIONS

        documents = document_routes() if self._documented else []
        return Router([*documents, *(operation.route() for operation in OPERATIONS)])

    @property
    def routes(self) -> list[BaseRoute]:
        """For whoever walks the table of routes."""
        return self._router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)


def set_app_state(app: Starlette, platform: Platform) -> None:
    """Put what the endpoints need into their app."""
    app.state.platform = platform
    app.state.agents_turn = asyncio.Lock()
    app.state.levels = ServiceLevels(platform.database, platform.settings.timezone)
    app.state.watching = Counter()
    app.state.readings = {}
