"""Tokens: programs' ways in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Forbidden
from gofer.store import row_macs
from gofer.store.tables import api_tokens, members
from gofer.web.api.http import WHOLE, RequestModel, answered, asked, platform_of, shown_once
from gofer.web.auth import Role, Scope, Visitor, note, visitor_of
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.auth.members import find_member, first_owner
from gofer.web.auth.principal import AS_ROLE, NOUNS, ROLES, read_scopes
from gofer.web.auth.sessions import TOKEN_LIFE, new_token, revoke_token

DAYS = int(TOKEN_LIFE / 86400)


class NewToken(RequestModel):
    """A token to make."""

    name: str = Field(min_length=1, max_length=100, description="What it is for.")
    scope: Scope = Field(default="read", description="For every noun; `scopes` narrows it to some.")
    scopes: list[Annotated[str, Field(max_length=60)]] = Field(
        default_factory=list,
        max_length=len(NOUNS),
        description="Words such as `jobs:write`: it may then use these nouns only, and `scope` does not count.",
    )
    days: Annotated[int, Field(ge=1, le=3650), WHOLE] | None = Field(
        default=DAYS, description="How long it is valid; without end if null."
    )
    member: str = Field(default="", max_length=200, description="Whose it is; one's own when empty.")


async def index(request: Request) -> Response:
    """List tokens: one's own, or everybody's for an owner."""
    visitor = _manager(request)
    found = await platform_of(request).database.read(partial(_list, visitor=visitor))
    return answered(request, {"tokens": found})


def _manager(request: Request) -> Visitor:
    """A token that may do everything manages tokens; a lesser one must not outlive itself by making others."""
    visitor = visitor_of(request)
    if visitor.via == "token" and visitor.role != "owner":
        raise Forbidden(
            "Tokens are managed by somebody who is signed in, or with an admin token of an owner."
        )
    return visitor


def _list(connection: Connection, visitor: Visitor) -> list[dict[str, Any]]:
    query = (
        select(api_tokens, members.c.name.label("member"))
        .join(members, members.c.id == api_tokens.c.member_id)
        .order_by(api_tokens.c.created_at.desc(), api_tokens.c.id)
    )
    if visitor.role != "owner":
        query = query.where(api_tokens.c.member_id == visitor.member_id)
    return [_told(connection, row) for row in connection.execute(query)]


def _told(connection: Connection, row: Any) -> dict[str, Any]:
    shown = {name: value for name, value in row._mapping.items() if name not in ("digest", "mac")}
    refused = not row_macs.fits(connection, api_tokens, row)
    return {**shown, "scopes": _words(row.scopes), "refused": refused}


async def add(request: Request) -> Response:
    """Make a token. It is shown this once."""
    platform, visitor = platform_of(request), _manager(request)
    check_confirmed(request)
    new = await asked(request, NewToken)
    note(request, name=new.name, scope=" ".join(new.scopes) or new.scope, days=new.days)
    made = await platform.database.write(partial(_add, visitor=visitor, new=new))
    return shown_once(made, 201)


def _add(connection: Connection, visitor: Visitor, new: NewToken) -> dict[str, Any]:
    if not new.member and visitor.member_id:
        member = find_member(connection, visitor.member_id)
    else:
        member = find_member(connection, new.member) if new.member else first_owner(connection)
    if member.id != visitor.member_id and visitor.role != "owner":
        raise Forbidden("Only an owner makes tokens for others.")
    scopes = read_scopes(new.scopes)
    check_scopes(member.role, scopes.values() if scopes else (new.scope,))
    life = new.days * 86400.0 if new.days is not None else None
    token_id, value = new_token(
        connection, member.id, name=new.name, scope=new.scope, scopes=scopes, life=life
    )
    made = connection.execute(select(api_tokens).where(api_tokens.c.id == token_id)).one()
    shown = {"scope": made.scope, "scopes": _words(made.scopes), "expires_at": made.expires_at}
    return {"id": token_id, "token": value, **shown}


def _words(scopes: str | None) -> list[str]:
    return scopes.split() if scopes is not None else []


def check_scopes(role: Role, wanted: Iterable[Scope]) -> None:
    """Raises Forbidden for a scope that whoever gets the token could not use."""
    for scope in wanted:
        if ROLES.index(AS_ROLE[scope]) > ROLES.index(role):
            raise Forbidden(f"The scope {scope} is more than the role {role} may do.")


async def revoke(request: Request) -> Response:
    """Revoke a token, at once."""
    visitor, token_id = _manager(request), request.path_params["id"]
    whose = None if visitor.role == "owner" else visitor.member_id
    await platform_of(request).database.write(partial(revoke_token, token_id=token_id, member_id=whose))
    return answered(request, {"id": token_id})
