"""Errors as problem+json (RFC 9457): one place decides which error is which status."""

from __future__ import annotations

import math

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gofer.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    GoferError,
    Malformed,
    NotFound,
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
    ConfigError: 400,
    Refused: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Stale: 412,
    TooOften: 429,
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
    422: "Not the same request",
    428: "Say which version",
    429: "Too many requests",
    431: "Too large a head",
    500: "Internal error",
    502: "Service error",
    503: "Not now",
}


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
    status = status_of(error)
    retry_after = getattr(error, "retry_after", None) or (5 if status == 503 else None)
    # A body that is too large or too slow is not waited for.
    close = status in (408, 413)
    response = problem(status, str(error), code=error.code, retry_after=retry_after, close=close)
    if status == 401:
        response.headers["www-authenticate"] = 'Bearer realm="gofer"'
    return response


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404, 405 and the like in the same shape."""
    assert isinstance(error, HTTPException)
    response = problem(error.status_code, str(error.detail))
    # A 405 says in a header what is allowed.
    response.headers.update(error.headers or {})
    return response


async def on_crash(request: Request, error: Exception) -> Response:
    """Anything else: the log has the traceback, the caller has a number to quote."""
    log.error("web.crashed", path=request.url.path, exc_info=error)
    return problem(500, "Something went wrong on our side. The log has the details.", code="internal")
