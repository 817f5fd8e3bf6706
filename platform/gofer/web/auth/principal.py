"""Who is there: what the guard found out about a request, and how an endpoint asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from starlette.requests import HTTPConnection

from gofer.errors import Forbidden, Malformed, Refused

Role = Literal["owner", "operator", "viewer"]
Via = Literal["session", "token", "socket"]
Scope = Literal["read", "write", "admin"]

ROLES: tuple[Role, ...] = ("viewer", "operator", "owner")
"""From the least to the most."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
AS_ROLE: dict[Scope, Role] = {"read": "viewer", "write": "operator", "admin": "owner"}
"""What a token may do at most."""
NOUNS = (
    "agents",
    "audit",
    "connections",
    "conversations",
    "costs",
    "deliveries",
    "events",
    "goals",
    "instance",
    "jobs",
    "key",
    "mcp",
    "members",
    "memories",
    "messages",
    "questions",
    "rows",
    "runtimes",
    "schedules",
    "secrets",
    "shells",
)
"""What a token's scopes can be for: the nouns of the API's table. Not tokens: it would make itself a wider one."""
AGENT_NOUNS = ("conversations", "jobs", "memories", "messages", "questions")
"""Nouns that a token bound to an agent may use."""
AGENT_WORD = "agent:"
"""The prefix of the word among a token's scopes that binds it to an agent. A release that does not know the word
refuses the token."""
ANYBODY = "me"
"""The noun that every token may read: who it speaks for."""


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
    scopes: Mapping[str, Role] | None = None
    """What a token may do with each noun; None when it is for all of them."""
    noun: str = ""
    """What the request is about, once the API knows; until then a token with scopes may do nothing."""
    agent: str = ""
    """The agent that a token is bound to, by name: it sees the conversations and jobs of that one alone."""

    def may(self, role: Role) -> bool:
        """Whether their role is at least this one."""
        if self.scopes is not None and not self.noun:
            return False
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
    confirmed: bool = False
    """Whether the session's owner gave their password or a link a short while ago."""
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


def actor(request: HTTPConnection) -> str:
    """Who did it, for the event log: the member's name, with a note when a token was used."""
    visitor = visitor_of(request)
    return f"{visitor.name} (token)" if visitor.via == "token" else visitor.name


def lesser(one: Role, other: Role) -> Role:
    """The role that may do less."""
    return min(one, other, key=ROLES.index)


def narrowed(visitor: Visitor, noun: str) -> Visitor:
    """Whoever asks about a noun, with the role that their token's scopes leave them; raises Forbidden."""
    if visitor.scopes is None:
        return visitor
    role = "viewer" if noun == ANYBODY else visitor.scopes.get(noun)
    if role is None:
        what = f"has no scope for {noun}" if noun else "is for the API only"
        raise Forbidden(f"This token {what}; its scopes are for {', '.join(sorted(visitor.scopes))}.")
    return replace(visitor, role=role, noun=noun)


def bound_agent(words: Iterable[str]) -> str:
    """The agent that the words of a token bind it to; empty when they do not."""
    return next((word.removeprefix(AGENT_WORD) for word in words if word.startswith(AGENT_WORD)), "")


def read_scopes(words: Iterable[str]) -> dict[str, Scope]:
    """What a token may do with each noun, from words such as `jobs:write`; raises Malformed."""
    found: dict[str, Scope] = {}
    for word in words:
        noun, _, scope = word.partition(":")
        if noun not in NOUNS or scope not in SCOPES:
            raise Malformed(
                f"scopes: {word[:60]!r} is not one. Write noun:scope, such as jobs:read. "
                f"Nouns: {', '.join(NOUNS)}. Scopes: {', '.join(SCOPES)}."
            )
        if noun in found:
            raise Malformed(f"scopes: {noun} is there twice.")
        found[noun] = scope
    return found
