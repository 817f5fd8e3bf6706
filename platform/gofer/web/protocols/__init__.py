"""WebSocket protocols of clients that exist already, as doors to the same rooms as the web chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from gofer.app import Platform
from gofer.errors import GoferError
from gofer.web.auth import visitor_of
from gofer.web.problems import error_response, problem

GATEWAY = "/gateway"
STREAM = "/v1/agents/{agent}/stream"


def routes(platform: Platform) -> list[BaseRoute]:
    """What to put into an app."""
    return [
        WebSocketRoute(STREAM, _door(_sessions, platform)),
        Route(STREAM, partial(explain, page="session"), methods=["GET"]),
        WebSocketRoute(GATEWAY, _door(_gateway, platform)),
        Route(GATEWAY, partial(explain, page="openclaw"), methods=["GET"]),
    ]


def _door(make: Callable[[Platform], Any], platform: Platform) -> Callable[[WebSocket], Awaitable[None]]:
    """The endpoint of a protocol. Its first client has the code loaded; most installations have none."""
    made = cache(partial(make, platform))

    async def socket(websocket: WebSocket) -> None:
        await made().socket(websocket)

    return socket


def _sessions(platform: Platform) -> Any:
    from gofer.web.protocols.session import SessionDoor

    return SessionDoor(platform)


def _gateway(platform: Platform) -> Any:
    from gofer.web.protocols.gateway import GatewayDoor

    return GatewayDoor(platform)


class GatewayPort:
    """ASGI app for a port of its own: the gateway is at its root, as clients of OpenClaw look for it, and nothing else
    is there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["path"] in ("/", GATEWAY):
            await self._app({**scope, "path": GATEWAY, "raw_path": GATEWAY.encode()}, receive, send)
        else:
            nothing = problem(404, f"This port is for OpenClaw's gateway protocol alone, at / and {GATEWAY}.")
            await nothing(scope, receive, send)


async def explain(request: Request, page: str) -> Response:
    """Tell a client that asks without an upgrade what is here."""
    try:
        visitor_of(request)
    except GoferError as error:
        return error_response(error)
    return problem(
        426, f"This is a WebSocket: ask to upgrade. docs/protocols/{page}.md says how.", code="upgrade"
    )
