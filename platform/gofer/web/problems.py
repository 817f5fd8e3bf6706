"""Errors as problem+json (RFC 9457): one place decides which error is which status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

from gofer.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    GoferError,
    Malformed,
    NotFound,
    NotInstalled,
    Refused,
    ServiceError,
    Stale,
    StoreError,
    TooBusy,
    TooOften,
)
from gofer.vault.errors import VaultError

log = structlog.get_logger()

STATUS: dict[type[GoferError], int] = {
    Malformed: 400,
    ConfigError: 422,
    Refused: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Stale: 412,
    TooOften: 429,
    NotInstalled: 503,
    ServiceError: 502,
    TooBusy: 503,
    StoreError: 503,
    VaultError: 503,
}

TITLES = {
    400: "Bad request",
    401: "Not verified",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Unsupported media",
    421: "Wrong host",
    422: "Cannot be done like this",
    429: "Too many requests",
    431: "Too large a head",
    499: "Nobody there",
    500: "Internal error",
    502: "Service error",
    503: "Not now",
}


WORDS = {404: "There is nothing at this address.", 405: "This address cannot be asked like that."}
"""What Starlette says in two words."""


def problem(
    status: int, detail: str, *, code: str = "", retry_after: float | None = None, close: bool = False
) -> Response:
    """A problem+json response."""
    headers = {}
    if retry_after is not None:
        headers["retry-after"] = str(math.ceil(retry_after))
    if close:
        headers["connection"] = "close"
    content = {
        "type": "about:blank",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
    }
    if code:
        content["code"] = code
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def status_of(error: GoferError) -> int:
    """The status an error of ours is answered with."""
    own: int | None = getattr(error, "status", None)
    return own or next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


async def on_gofer_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for errors raised on purpose."""
    assert isinstance(error, GoferError)
    return error_response(error)


def error_response(error: GoferError) -> Response:
    """The answer to a request, or to one for a WebSocket, that met an error of ours."""
    status = status_of(error)
    retry_after = getattr(error, "retry_after", None) or (5 if status == 503 else None)
    # A body that is too slow is not waited for. The sender of one that is too large would not read our answer
    # if the connection were cut; what it still sends within a few seconds is thrown away.
    response = problem(status, str(error), code=error.code, retry_after=retry_after, close=status == 408)
    if status == 401:
        response.headers["www-authenticate"] = 'Bearer realm="gofer"'
    return response


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404, 405 and the like in the same shape."""
    assert isinstance(error, HTTPException)
    response = problem(error.status_code, WORDS.get(error.status_code, str(error.detail)))
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        methods = set(_methods(request.app.routes, {**request.scope, "root_path": ""}))
        response.headers["allow"] = ", ".join(sorted(methods))
    return response


def _methods(routes: Iterable[BaseRoute], scope: Scope) -> Iterator[str]:
    """The methods that a path allows. Starlette itself names those of the first route only."""
    for route in routes:
        match, inner = route.matches(scope)
        if match is Match.NONE:
            continue
        if isinstance(route, Mount):
            yield from _methods(route.routes, {**scope, **inner})
        elif isinstance(route, Route):
            yield from route.methods or ()


async def on_crash(request: Request, error: Exception) -> Response:
    """Starlette's handler for anything else."""
    return crash(request.url.path, error)


def crash(path: str, error: Exception) -> Response:
    """What nobody meant to raise: the log has the traceback, the caller has a number to quote."""
    log.error("web.crashed", path=path, exc_info=error)
    return problem(500, "Something went wrong on our side. The log has the details.", code="internal")
