"""Who is looking: a stand-in with the guard's names, which lets nobody in, until the guard itself is here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

Role = Literal["owner", "operator", "viewer"]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in."""

    member_id: str
    name: str
    role: Role
    via: Literal["session", "token", "socket"]


def visitor_of(request: Request) -> Visitor:
    """Who makes the request."""
    visitor: Visitor = request.state.visitor
    return visitor


def csrf_of(request: Request) -> str:
    """What a form must send along."""
    return ""


def require(role: Role) -> Callable[[Endpoint], Endpoint]:
    """Let only those in who have at least this role."""

    def around(endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            if not hasattr(request.state, "visitor"):
                return RedirectResponse(f"/login?next={request.url.path}", 303)
            return await endpoint(request)

        return guarded

    return around
