"""The endpoint for other people's agents: MCP at `/mcp`, over streamable HTTP, without sessions.

A bearer token says who calls. Requests are bounded in size, time and number, and a page of another site cannot make
any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer.app import Platform
from gofer.client.mcp_api import CallerApi, OperationCall
from gofer.errors import Forbidden, GoferError, TooOften
from gofer.strict_json import load_json
from gofer.web.api.http import MAX_BODY
from gofer.web.auth import NotSignedIn, visitor_of
from gofer.web.auth.guard import check_origin
from gofer.web.auth.principal import Visitor, caller_of
from gofer.web.body import receive_body
from gofer.web.problems import on_gofer_error

if TYPE_CHECKING:
    from mcp.server import Server, ServerRequestContext

PATH = "/mcp"
MAX_CALLS, CALLS_WINDOW = 600, 60.0
"""Requests of one token within so many seconds."""
MAX_TOKENS = 10_000
MAX_AT_ONCE = 32
"""Requests of one token that are under way at the same time. Those that wait for a job look at it again and again."""


class CallLimit:
    """Limits the requests of each token: how many at once, and how many on average."""

    def __init__(self, most: int = MAX_CALLS, window: float = CALLS_WINDOW) -> None:
        self._most = most
        self._per_second = most / window
        self._left: dict[str, tuple[float, float]] = {}
        self._at_once: dict[str, int] = {}

    def take(self, who: str) -> None:
        """Count one; raises TooOften."""
        now = time.monotonic()
        left, seen = self._left.get(who, (float(self._most), now))
        left = min(float(self._most), left + (now - seen) * self._per_second)
        if left < 1:
            raise TooOften(
                f"This token made more than {self._most} requests in a minute. Wait a while.",
                retry_after=(1 - left) / self._per_second,
            )
        if len(self._left) >= MAX_TOKENS:
            self._left.clear()
        self._left[who] = (left - 1, now)

    @contextlib.contextmanager
    def under_way(self, who: str) -> Iterator[None]:
        """While a request is answered; raises TooOften when too many are."""
        if self._at_once.get(who, 0) >= MAX_AT_ONCE:
            raise TooOften(f"This token has {MAX_AT_ONCE} requests under way. Wait for one of them.")
        self._at_once[who] = self._at_once.get(who, 0) + 1
        try:
            yield
        finally:
            self._at_once[who] -= 1
            if not self._at_once[who]:
                del self._at_once[who]


class McpEndpoint:
    """ASGI app at `/mcp`."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._limit = CallLimit()
        self._server: Server[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            with self._limit.under_way(self.check(request)):
                await self._answer(request, scope, receive, send)
        except GoferError as error:
            await (await on_gofer_error(request, error))(scope, receive, send)

    def check(self, request: Request) -> str:
        """Whose request it is, by their token's id, and whether they may make one now; raises GoferError."""
        visitor = _caller(request)
        if request.headers.get("origin"):
            check_origin(request)
        self._limit.take(visitor.token_id)
        return visitor.token_id

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        if request.method != "POST":
            # There are no sessions: no stream to listen at, and nothing to end.
            await Response(status_code=405, headers={"allow": "POST"})(scope, receive, send)
            return
        body = await receive_body(
            scope, receive, at_most=MAX_BODY, within=self._platform.settings.body_timeout
        )
        if body:
            load_json(body)  # refuses what is JSON only to the lenient
        # Spaces around a header's value are no part of it; the library compares some with the body.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self._serve({**scope, "headers": headers}, _again(body, receive), send)

    def build(self) -> Server[Any]:
        """The server that answers."""
        from gofer.client.mcp_server import build_server

        return build_server(_in_process)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._server is None:
            # In a thread: it takes most of a second, in which others want to be answered.
            self._server = await asyncio.to_thread(self.build)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        # One for each request: nothing of it is left when the request has ended.
        manager = StreamableHTTPSessionManager(self._server, stateless=True, max_request_body_size=MAX_BODY)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def route(platform: Platform) -> Route:
    """The route of the endpoint."""
    return Route(PATH, McpEndpoint(platform), methods=["GET", "POST", "DELETE"], name="mcp.request")


def _caller(request: Request) -> Visitor:
    """Whose token it is. A browser's cookie does not count here."""
    visitor = visitor_of(request)
    if visitor.via != "token":
        raise NotSignedIn("MCP needs a token: Authorization: Bearer …")
    if visitor.scopes is not None and not visitor.scopes:
        raise Forbidden
    return visitor


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first repeats the body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return messages.pop() if messages else await receive()

    return read


def _in_process(context: ServerRequestContext[Any]) -> InProcessApi:
    request = context.request
    assert isinstance(request, Request)
    return InProcessApi(request)


class InProcessApi(CallerApi):
    """The API of this process in the name of whoever made a request."""

    def __init__(self, request: Request) -> None:
        self._scope = request.scope
        self._caller = caller_of(request)
        self._visitor = visitor_of(request)
        self._router: ASGIApp = request.app.router

    async def send(self, request: OperationCall) -> tuple[int, bytes]:
        """Have the router answer it."""
        path = f"/api/v1{request.path}"
        headers = {"content-type": "application/json", "host": "gofer", **request.headers}
        scope = {
            **{name: value for name, value in self._scope.items() if name not in _OWN},
            "method": request.method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(request.query).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": {},
            # The API narrows the visitor to what each operation is about.
            "gofer.caller": replace(self._caller, visitor=self._visitor),
        }
        sent = b"" if request.body is None else json.dumps(request.body).encode()
        answer = _Answer()
        await self._router(scope, _again(sent, _nothing_more), answer.send)
        return answer.status, bytes(answer.body)

    async def me(self) -> Mapping[str, Any]:
        """Who calls; known here, so that no request is made for it."""
        return {"role": self._visitor.role, "scopes": self._visitor.scopes, "agent": self._visitor.agent}


_OWN = frozenset({"endpoint", "route", "path_params", "gofer.body", "gofer.most_body"})


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


class _Answer:
    """Collects an answer of the API."""

    def __init__(self) -> None:
        self.status = 500
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
