"""A request id for each request, and one log line when it is answered. Pure ASGI."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer.store.ids import new_id
from gofer.web.auth.client_address import Peers, plain_address
from gofer.web.body import CLIENT_GONE

log = structlog.get_logger()

SELDOM_READ = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked for every few seconds by machines; worth a line only at debug."""
WINDOW = 60.0
"""Seconds over which strangers' requests are counted."""
MAX_LINES, MAX_LINES_OF_ADDRESS, MAX_LINES_OF_PATH = 300, 30, 10
"""Lines about strangers' requests within them, of those refused and of those answered: in all, of one address, and of
its requests for one path."""
MAX_NAMED = 10
"""Addresses that a summary names."""


class RequestLog:
    """Wraps an app."""

    def __init__(self, app: ASGIApp, peers: Peers | None = None) -> None:
        self._app = app
        self._refused = StrangersLines(peers, "request.refused_many")
        self._answered = StrangersLines(peers, "request.many")

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
        quiet = status == CLIENT_GONE or (path in SELDOM_READ and status < 400)
        lines = self._refused if status >= 400 else self._answered
        # What a webhook brought is signed, and each has its line, whoever sends how many.
        signed = status < 400 and path.startswith("/hooks/")
        if not (signed or (quiet and status < 400)) and not lines.may_tell(scope, path):
            return
        say = log.debug if quiet else log.info
        say("request", method=scope["method"], path=path[:200], status=status, ms=round(seconds * 1000, 1))


class StrangersLines:
    """Bounds what strangers can write into the log: beyond a rate their requests are counted and summed up."""

    def __init__(self, peers: Peers | None, summary: str) -> None:
        self._peers = peers
        self._summary = summary
        self._told: Counter[tuple[str, ...]] = Counter()
        self._untold: Counter[str] = Counter()
        self._begun = -WINDOW
        self._later: asyncio.TimerHandle | None = None

    def may_tell(self, scope: Scope, path: str) -> bool:
        """Whether a request gets a line of its own. What signed-in people do always does."""
        caller = scope.get("gofer.caller")
        if caller is not None and caller.visitor is not None:
            return True
        if time.monotonic() - self._begun >= WINDOW:
            self.summarise()
            self._begun = time.monotonic()
        address = self._address(scope)
        limits = {(): MAX_LINES, (address,): MAX_LINES_OF_ADDRESS, (address, path[:80]): MAX_LINES_OF_PATH}
        if any(self._told[key] >= most for key, most in limits.items()):
            self._count(address)
            return False
        self._told.update(limits.keys())
        return True

    def summarise(self) -> None:
        """Say how many went untold, and begin anew."""
        if self._untold:
            named = dict(self._untold.most_common(MAX_NAMED))
            log.warning(self._summary, count=self._untold.total(), addresses=named)
        self._told.clear()
        self._untold.clear()
        if self._later is not None:
            self._later.cancel()  # it would end the next window early

    def _count(self, address: str) -> None:
        if not self._untold:
            # Told also when nobody asks for anything any more.
            self._later = asyncio.get_running_loop().call_later(WINDOW, self.summarise)
        self._untold[address if len(self._untold) < MAX_LINES or address in self._untold else "others"] += 1

    def _address(self, scope: Scope) -> str:
        if self._peers is not None:
            return self._peers.address(scope, Headers(scope=scope))
        return plain_address(scope["client"][0]) if scope.get("client") else ""


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
