"""A request id for each request, and one log line when it is answered. Pure ASGI."""

from __future__ import annotations

import time
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer.store.ids import new_id

log = structlog.get_logger()

SELDOM_READ = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked for every few seconds by machines; worth a line only at debug."""


class RequestLog:
    """Wraps an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Bind the id for every line logged on the way, and give it back in a header."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        answer = _Answer(send, request_id)
        begun = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self._app(scope, receive, answer.send)
            finally:
                self._note(scope, answer.status, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if not scope["path"].startswith("/link/") else "/link/…"
        say = log.debug if path in SELDOM_READ and status < 400 else log.info
        say("request", method=scope["method"], path=path[:200], status=status, ms=round(seconds * 1000, 1))


class _Answer:
    """Sees the status go by and adds the header."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Any] = [
                *message.get("headers", ()),
                (b"x-request-id", self._request_id.encode()),
            ]
            message = {**message, "headers": headers}
        await self._send(message)
