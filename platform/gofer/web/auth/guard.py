"""The guard before every request: who sent it, whether it is meant for us, and whether they meant the change."""

from __future__ import annotations

import asyncio
import functools
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from gofer.app import Platform
from gofer.errors import Forbidden, GoferError
from gofer.web.auth.audit import audited
from gofer.web.auth.client_address import Peers
from gofer.web.auth.principal import (
    ANYBODY,
    ROLES,
    SOCKET,
    Caller,
    NotSignedIn,
    Role,
    caller_of,
    narrowed,
    visitor_of,
)
from gofer.web.auth.sessions import Recognised, by_session, by_token, csrf_for, session_seen, token_used
from gofer.web.body import read_form
from gofer.web.problems import error_response, on_gofer_error, problem
from gofer.web.unix_socket import AS_AGENT, AS_ROLE

PLAIN_COOKIE, SECURE_COOKIE = "gofer_session", "__Host-gofer_session"
CSRF_FIELD, CSRF_HEADER = "csrf", "x-gofer-csrf"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PREFIXES = ("/hooks/", "/healthz", "/readyz")
"""Paths for machines, which know nothing of cookies and may call us by any name. A webhook is known by its signature.
"""
METRICS = "/metrics"
"""Asked for by Prometheus, which finds us by whatever name its own network has; its token says who it is."""
MAX_CREDENTIAL = 200
MAX_FILES, MAX_FIELDS = 100, 1000

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])


class Guard:
    """ASGI middleware: puts a Caller into the scope, or ends the request here."""

    def __init__(self, app: ASGIApp, platform: Platform) -> None:
        self._app = app
        self._platform = platform
        self._peers = Peers(platform.settings)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Look at a request, then let it pass."""
        if scope["type"] not in ("http", "websocket") or scope["path"].startswith(OPEN_PREFIXES):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        secure = self._peers.scheme(scope, headers) == "https"
        caller = Caller(address=self._peers.address(scope, headers), secure=secure)
        scope["gofer.caller"], scope["gofer.peers"] = caller, self._peers
        answer = await self._answered_here(scope, headers, caller)
        if answer is not None:
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _answered_here(self, scope: AsgiScope, headers: Headers, caller: Caller) -> Response | None:
        misdirected = self._misdirected(scope, headers)
        if misdirected is not None:
            return misdirected
        try:
            await self._recognise(caller, headers)
        except GoferError as error:
            # The database is away: nobody can be told from anybody.
            return error_response(error)
        if (full := _no_room(scope, caller)) is not None:
            return full
        return self._foreign_socket(scope, headers, caller)

    def _misdirected(self, scope: AsgiScope, headers: Headers) -> Response | None:
        any_name = scope["path"] == METRICS and "authorization" in headers
        if not any_name and not self._peers.serves(headers.get("host", "")):
            named = "GOFER_PUBLIC_URL or GOFER_ALLOWED_HOSTS"
            return problem(421, f"This server is not visited by that name. Add it to {named}.", code="host")
        if "\x00" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return problem(
                400, "The address has a character that nothing here is called by.", code="malformed"
            )
        return None

    async def _recognise(self, caller: Caller, headers: Headers) -> None:
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            await self._by_token(caller, credential.strip())
            return
        cookie = _cookie(headers, SECURE_COOKIE if caller.secure else PLAIN_COOKIE)
        if cookie:
            await self._by_cookie(caller, cookie)

    async def _by_token(self, caller: Caller, token: str) -> None:
        found = await self._found(by_token, token)
        if found is None:
            caller.why_not = "The token is unknown, revoked or expired."
            return
        caller.visitor = found.visitor
        if found.stale:
            await self._platform.database.write(
                functools.partial(token_used, token_id=found.visitor.token_id)
            )

    async def _by_cookie(self, caller: Caller, cookie: str) -> None:
        found = await self._found(by_session, cookie)
        if found is None:
            caller.why_not = "The session has ended. Sign in again."
            return
        caller.visitor, caller.session, caller.confirmed = found.visitor, cookie, found.confirmed
        if found.stale:
            await self._platform.database.write(functools.partial(session_seen, value=cookie))

    async def _found(self, look: Callable[..., Recognised | None], value: str) -> Recognised | None:
        if not 0 < len(value) <= MAX_CREDENTIAL:
            return None
        return await self._platform.database.read(functools.partial(look, value=value))

    def _foreign_socket(self, scope: AsgiScope, headers: Headers, caller: Caller) -> Response | None:
        """Whether a WebSocket comes from a page of another site. Browsers do not hold these back, so the origin is
        checked here."""
        if scope["type"] != "websocket":
            return None
        origin = headers.get("origin", "")
        by_cookie = caller.visitor is not None and caller.visitor.via == "session"
        if self._peers.is_own(origin, scope, headers) or (not origin and not by_cookie):
            return None
        return problem(403, "The connection was opened by another site's page.", code="origin")


def _no_room(scope: AsgiScope, caller: Caller) -> Response | None:
    """When every connection is in use, who is signed in comes first; strangers are told to come back."""
    connection = scope.get("gofer.connection")
    if connection is None:
        return None
    if caller.visitor is not None:
        connection.is_known()
    elif connection.crowded:
        words = "Too many connections are open. Try again in a moment."
        return problem(connection.crowded, words, code="crowded", retry_after=5, close=True)
    return None


class FromSocket:
    """ASGI middleware for the Unix socket: whoever may open its file is the owner, and may ask for a lesser role."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Let a request pass as the owner's."""
        headers = Headers(scope=scope)
        asked = headers.get(AS_ROLE, SOCKET.role)
        role = next((role for role in ROLES if role == asked), ROLES[0])
        visitor = replace(SOCKET, role=role, agent=headers.get(AS_AGENT, ""))
        scope["gofer.caller"] = Caller(visitor=visitor)
        await self._app(scope, receive, send)


def _cookie(headers: Headers, name: str) -> str:
    """A cookie's value. A cookie that comes twice counts as none, since nobody knows which is the real one."""
    found = []
    for part in ";".join(headers.getlist("cookie")).split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            found.append(value)
    return found[0] if len(found) == 1 else ""


def set_cookie(response: Response, value: str, *, secure: bool, life: int) -> None:
    """Give the browser its session, or take it away with an empty value."""
    response.set_cookie(
        SECURE_COOKIE if secure else PLAIN_COOKIE,
        value,
        max_age=life,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def csrf_of(request: HTTPConnection) -> str:
    """What a form must send along as `csrf`, or a script as `x-gofer-csrf`; empty without a session."""
    session = caller_of(request).session
    return csrf_for(session) if session else ""


def require(
    role: Role, noun: str = "", *, for_agents: bool = False, routine: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """An endpoint for those with at least this role. A change must be their own wish, and is put on record unless it
    is routine.

    A token with scopes of its own reaches only endpoints of a noun; one that is bound to an agent, only those that
    look at whose something is.
    """

    def guarded(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def answer(*arguments: Any) -> Response:
            request: Request = arguments[-1]
            try:
                visitor = visitor_of(request)
            except NotSignedIn as error:
                return await not_signed_in_response(request, error)
            visitor = caller_of(request).visitor = narrowed(visitor, noun)
            if visitor.agent and not for_agents and noun != ANYBODY:
                raise Forbidden(f"This token is bound to the agent {visitor.agent} and may not do this.")
            if not visitor.may(role):
                raise Forbidden(f"This needs the role {role}; you have {visitor.role}.")
            if request.method in SAFE:
                return await endpoint(*arguments)
            await check_csrf(request)
            if routine:
                return await endpoint(*arguments)
            return await audited(request, visitor, lambda: endpoint(*arguments))

        answer.role = role  # type: ignore[attr-defined]
        return answer  # type: ignore[return-value]

    return guarded


async def not_signed_in_response(request: Request, error: NotSignedIn) -> Response:
    """The answer for a stranger: 401 from the API, a redirect to the login from a page."""
    if request.url.path.startswith("/api/") or request.url.path == METRICS:
        return await on_gofer_error(request, error)
    if request.method not in SAFE:
        return RedirectResponse("/login", 303)
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(asked, safe='')}", 303)


async def check_csrf(request: Request) -> None:
    """Raises Forbidden for a change by a session that its own page did not ask for."""
    caller = caller_of(request)
    if caller.visitor is None or caller.visitor.via != "session":
        return
    check_origin(request)
    given = request.headers.get(CSRF_HEADER)
    if not given:
        form = await read_form(request, max_files=MAX_FILES, max_fields=MAX_FIELDS)
        given = str(form.get(CSRF_FIELD, ""))
    if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), csrf_for(caller.session).encode()):
        raise Forbidden("The form is stale or came from elsewhere. Load the page again.")


def check_origin(request: Request, *, may_be_missing: bool = False) -> None:
    """Raises Forbidden for a request that another site's page made."""
    origin = request.headers.get("origin", "")
    if not origin and (may_be_missing or request.headers.get("sec-fetch-site") == "same-origin"):
        return
    if not request.scope["gofer.peers"].is_own(origin, request.scope, request.headers):
        raise Forbidden("The request was made by another site's page.")


LOOK_AGAIN = 15.0
"""Seconds between two checks."""


async def check_still(platform: Platform, connection: HTTPConnection, role: Role) -> None:
    """Raises NotSignedIn once they have signed out, their token is revoked, or their role is taken away."""
    if visitor_of(connection).via == "socket":
        return
    session = caller_of(connection).session
    token = connection.headers.get("authorization", "").partition(" ")[2].strip()
    look = partial(by_session, value=session) if session else partial(by_token, value=token)
    found = await platform.database.read(look)
    if found is None or not narrowed(found.visitor, visitor_of(connection).noun).may(role):
        raise NotSignedIn("The session has ended.")


async def watch_over(platform: Platform, connection: HTTPConnection, role: Role) -> None:
    """Check repeatedly; ends by raising NotSignedIn."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        await check_still(platform, connection, role)
