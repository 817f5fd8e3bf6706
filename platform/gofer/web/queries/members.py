"""Members with their tokens and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from gofer.errors import Forbidden
from gofer.store import row_macs
from gofer.store.tables import api_tokens, members
from gofer.web.auth import Role, Scope
from gofer.web.auth.members import find_member, list_members, new_link
from gofer.web.auth.principal import AGENT_WORD, AS_ROLE, ROLES, bound_agent
from gofer.web.auth.sessions import new_token


def describe_member(row: Any) -> dict[str, Any]:
    """What may be told of a member."""
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "has_password": bool(row.password),
        "created_at": row.created_at,
        "signed_in_at": row.signed_in_at,
    }


def described_members(connection: Connection) -> list[dict[str, Any]]:
    """The first one first. A row that somebody else than Gofer wrote is refused: its member gets in nowhere."""
    return [
        {**describe_member(row), "refused": not row_macs.fits(connection, members, row)}
        for row in list_members(connection)
    ]


def list_tokens(connection: Connection, member_id: str | None) -> list[dict[str, Any]]:
    """A member's tokens, or everybody's when None; the newest first."""
    query = (
        select(api_tokens, members.c.name.label("member"))
        .join(members, members.c.id == api_tokens.c.member_id)
        .order_by(api_tokens.c.created_at.desc(), api_tokens.c.id)
    )
    if member_id is not None:
        query = query.where(api_tokens.c.member_id == member_id)
    return [
        {
            **{name: value for name, value in row._mapping.items() if name not in ("digest", "mac")},
            **scope_fields(row.scopes),
            "refused": not row_macs.fits(connection, api_tokens, row),
        }
        for row in connection.execute(query).all()
    ]


def scope_fields(scopes: str | None) -> dict[str, Any]:
    """A token's scopes for single nouns, and the agent that it is bound to."""
    words = (scopes or "").split()
    return {
        "scopes": [word for word in words if not word.startswith(AGENT_WORD)],
        "agent": bound_agent(words),
    }


FOR_OWNERS = (
    "Only an owner can have a token bound to an agent: it sees what people tell the agent in private."
)


def make_token(
    connection: Connection,
    member: Any,
    *,
    name: str,
    scope: Scope,
    scopes: Mapping[str, Scope] | None,
    days: int | None,
    agent: str = "",
) -> tuple[str, str]:
    """A token's id and value; raises Forbidden for a scope that its member's role does not have."""
    _check_scopes(member.role, scopes.values() if scopes else (scope,))
    if agent and member.role != "owner":
        raise Forbidden(FOR_OWNERS)
    life = days * 86400.0 if days is not None else None
    return new_token(connection, member.id, name=name, scope=scope, scopes=scopes, life=life, agent=agent)


def _check_scopes(role: Role, scopes: Iterable[Scope]) -> None:
    for scope in scopes:
        if ROLES.index(AS_ROLE[scope]) > ROLES.index(role):
            raise Forbidden(f"The scope {scope} is more than the role {role} may do.")


def make_link(connection: Connection, member: str) -> tuple[str, str]:
    """The name of a member, by id or name, and a fresh link's token for them."""
    row = find_member(connection, member)
    return str(row.name), new_link(connection, row.id)
