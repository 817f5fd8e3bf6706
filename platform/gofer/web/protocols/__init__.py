"""WebSocket protocols of clients that exist already, as doors to the same rooms as the web chat."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from gofer.app import Platform
from gofer.errors import GoferError
from gofer.web.auth import visitor_of
from gofer.web.problems import on_gofer_error, problem
from gofer.web.protocols.gateway import GATEWAY, GatewayDoor
from gofer.web.protocols.session import SessionDoor

STREAM = "/v1/agents/{agent}/stream"


def routes(platform: Platform) -> list[BaseRoute]:
    """What to put into an app."""
    return [
        WebSocketRoute(STREAM, SessionDoor(platform).socket),
        Route(STREAM, partial(explain, page="session"), methods=["GET"]),
        WebSocketRoute(GATEWAY, GatewayDoor(platform).socket),
        Route(GATEWAY, partial(explain, page="openclaw"), methods=["GET"]),
    ]


async def explain(request: Request, page: str) -> Response:
    """Tell a client that asks without an upgrade what is here."""
    try:
        visitor_of(request)
    except GoferError as error:
        return await on_gofer_error(request, error)
    return problem(
        426, f"This is a WebSocket: ask to upgrade. docs/protocols/{page}.md says how.", code="upgrade"
    )
