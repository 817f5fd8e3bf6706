"""Who is there: what the guard found out about a request, and how an endpoint asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from starlette.requests import HTTPConnection

from gofer.errors import Refused

Role = Literal["owner", "operator", "viewer"]
Via = Literal["session", "token", "socket"]
Scope = Literal["read", "write", "admin"]

ROLES: tuple[Role, ...] = ("viewer", "operator", "owner")
"""From the least to the most."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
AS_ROLE: dict[Scope, Role] = {"read": "viewer", "write": "operator", "admin": "owner"}
"""What a token may do at most."""


class NotSignedIn(Refused):
    """Nobody is signed in. Sign in, or send a token: Authorization: Bearer …"""

    code = "not_signed_in"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is known here."""

    member_id: str
    """Empty for the command line."""
    name: str
    role: Role
    via: Via
    token_id: str = ""

    def may(self, role: Role) -> bool:
        """Whether their role is at least this one."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(slots=True)
class Caller:
    """A request's origin: who, from where, and with which session."""

    visitor: Visitor | None = None
    address: str = ""
    """The client's, past trusted proxies."""
    secure: bool = False
    """Whether the browser came by https."""
    session: str = ""
    """The cookie's value, when it is that of a live session."""
    why_not: str = ""
    """What was wrong with the token or cookie that was sent."""


SOCKET = Visitor(member_id="", name="command line", role="owner", via="socket")


def caller_of(request: HTTPConnection) -> Caller:
    """What the guard found out."""
    return cast(Caller, request.scope["gofer.caller"])


def visitor_of(request: HTTPConnection) -> Visitor:
    """Who is there; raises NotSignedIn (a Refused) when nobody is."""
    caller: Caller | None = request.scope.get("gofer.caller")
    if caller is None or caller.visitor is None:
        raise NotSignedIn(caller.why_not if caller is not None else None)
    return caller.visitor


def lesser(one: Role, other: Role) -> Role:
    """The role that may do less."""
    return min(one, other, key=ROLES.index)
