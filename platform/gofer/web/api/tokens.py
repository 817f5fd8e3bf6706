"""Tokens, with which programs use the API."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.errors import Forbidden, Malformed
from gofer.intake.scheduled_messages import find_agent
from gofer.store.tables import api_tokens
from gofer.web.api.http import WHOLE, ApiAnswer, RequestModel, platform_of
from gofer.web.auth import Scope, Visitor, note, visitor_of
from gofer.web.auth.members import find_member, first_owner
from gofer.web.auth.principal import AGENT_NOUNS, NOUNS, SCOPES, read_scopes
from gofer.web.auth.sessions import TOKEN_LIFE, revoke_token
from gofer.web.queries.members import list_tokens, make_token, scope_fields

DAYS = int(TOKEN_LIFE / 86400)


_WORD = {"pattern": f"^({'|'.join(NOUNS)}):({'|'.join(SCOPES)})$"}
"""For the description of the API alone: what is no scope is refused with a sentence that lists them."""


class NewToken(RequestModel):
    """A token to make."""

    name: str = Field(min_length=1, max_length=100, description="What it is for.")
    scope: Scope = Field(default="read", description="For every noun; `scopes` narrows it to some.")
    scopes: list[Annotated[str, Field(max_length=60, json_schema_extra=_WORD)]] = Field(
        default_factory=list,
        max_length=len(NOUNS),
        description="Words such as `jobs:write`: it may then use these nouns only, and `scope` does not count.",
    )
    agent: str = Field(
        default="",
        max_length=100,
        description="Bound to this agent: it sees that agent's conversations and jobs and speaks in its name.",
    )
    days: Annotated[int, Field(ge=1, le=3650), WHOLE] | None = Field(
        default=DAYS, description="How long it is valid; without end if null."
    )
    member: str = Field(default="", max_length=200, description="Whose it is; one's own when empty.")


async def index(request: Request) -> dict[str, Any]:
    """List your own tokens; an owner sees everybody's."""
    visitor = _manager(request)
    found = await platform_of(request).database.read(list_tokens, member_id=_whose(visitor))
    return {"tokens": found}


def _whose(visitor: Visitor) -> str | None:
    return None if visitor.role == "owner" else visitor.member_id


def _manager(request: Request) -> Visitor:
    """A token that may do everything manages tokens; a lesser one must not outlive itself by making others."""
    visitor = visitor_of(request)
    if visitor.via == "token" and visitor.role != "owner":
        raise Forbidden(
            "Tokens are managed by somebody who is signed in, or with an admin token of an owner."
        )
    return visitor


async def add(request: Request, new: NewToken) -> ApiAnswer:
    """Make a token. It is shown this once."""
    platform, visitor = platform_of(request), _manager(request)
    note(request, name=new.name, scope=" ".join(new.scopes) or new.scope, days=new.days)
    if new.agent:
        note(request, agent=new.agent)
    made = await platform.database.write(_add, visitor=visitor, new=new)
    return ApiAnswer(made, masked=False)


def _add(connection: Connection, visitor: Visitor, new: NewToken) -> dict[str, Any]:
    if not new.member and visitor.member_id:
        member = find_member(connection, visitor.member_id)
    else:
        member = find_member(connection, new.member) if new.member else first_owner(connection)
    if member.id != visitor.member_id and visitor.role != "owner":
        raise Forbidden("Only an owner makes tokens for others.")
    if new.agent:
        find_agent(connection, new.agent)
        if stray := sorted({word.partition(":")[0] for word in new.scopes} - {*AGENT_NOUNS}):
            raise Malformed(
                f"scopes: a token that is bound to an agent is for {', '.join(AGENT_NOUNS)}, not for {stray[0]}."
            )
    token_id, value = make_token(
        connection,
        member,
        name=new.name,
        scope=new.scope,
        scopes=read_scopes(new.scopes),
        days=new.days,
        agent=new.agent,
    )
    made = connection.execute(select(api_tokens).where(api_tokens.c.id == token_id)).one()
    return {
        "id": token_id,
        "token": value,
        "scope": made.scope,
        **scope_fields(made.scopes),
        "expires_at": made.expires_at,
    }


async def revoke(request: Request) -> dict[str, Any]:
    """Revoke a token, at once."""
    visitor, token_id = _manager(request), request.path_params["id"]
    await platform_of(request).database.write(revoke_token, token_id=token_id, member_id=_whose(visitor))
    return {"id": token_id}
