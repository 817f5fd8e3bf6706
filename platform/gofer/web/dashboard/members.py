"""Members and API tokens: who may come in, as what, and with which keys."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.store import row_macs
from gofer.store.tables import api_tokens, members, web_sessions
from gofer.web.auth import caller_of, note, visitor_of
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.auth.members import (
    add_member,
    change_member,
    digest,
    find_member,
    list_members,
    new_link,
    remove_member,
)
from gofer.web.auth.principal import NOUNS, ROLES, SCOPES, Role, read_scopes
from gofer.web.auth.sessions import SHOWN, end_sessions, new_token, revoke_token
from gofer.web.dashboard.endpoints import form_of, page, rows, text_of
from gofer.web.dashboard.render import go, platform_of, render

LIVES = {"90": 90, "7": 7, "30": 30, "365": 365, "": None}
"""Days after which a token ends."""


@page("viewer")
async def index(request: Request) -> Response:
    """The lists; a viewer sees only what is theirs."""
    visitor = visitor_of(request)
    only = None if visitor.may("owner") else visitor.member_id
    found = await platform_of(request).database.read(partial(read, only=only))
    return _page(request, found)


def _page(request: Request, found: dict[str, Any], made: dict[str, str] | None = None) -> Response:
    choices: dict[str, Any] = {"roles": ROLES, "scopes": SCOPES, "lives": list(LIVES), "nouns": NOUNS}
    here = digest(caller_of(request).session)[:SHOWN]
    return render(request, "members.html", **found, current=here, **choices, unmasked={"made": made})


def read(connection: Connection, only: str | None) -> dict[str, Any]:
    """Members, their tokens and sessions."""
    people = select(
        members.c.id, members.c.name, members.c.role, (members.c.password != "").label("has_password"),
        members.c.created_at, members.c.signed_in_at,
    ).order_by(members.c.created_at)  # fmt: skip
    tokens = (
        select(
            api_tokens.c.id, api_tokens.c.name, api_tokens.c.scope, api_tokens.c.scopes, api_tokens.c.created_at,
            api_tokens.c.expires_at, api_tokens.c.used_at, members.c.name.label("member"),
        )
        .join(members, members.c.id == api_tokens.c.member_id)
        .order_by(api_tokens.c.created_at)
    )  # fmt: skip
    sessions = (
        select(
            func.substr(web_sessions.c.digest, 1, SHOWN).label("id"),
            web_sessions.c.by, web_sessions.c.address, web_sessions.c.agent, web_sessions.c.created_at,
            web_sessions.c.seen_at, members.c.name.label("member"),
        )
        .join(members, members.c.id == web_sessions.c.member_id)
        .order_by(web_sessions.c.seen_at.desc())
        .limit(50)
    )  # fmt: skip
    if only is not None:
        people = people.where(members.c.id == only)
        tokens, sessions = (query.where(members.c.id == only) for query in (tokens, sessions))
    return {
        "members": rows(connection, people),
        "refused_members": _refused(connection),
        "tokens": rows(connection, tokens),
        "sessions": rows(connection, sessions),
    }


def _refused(connection: Connection) -> set[str]:
    """Members whose row somebody else than Gofer wrote: they get in nowhere, whatever it says."""
    return {row.id for row in list_members(connection) if not row_macs.fits(connection, members, row)}


def _role(text: str) -> Role:
    if text not in ROLES:
        raise Malformed(f"role: must be one of {', '.join(ROLES)}.")
    return text


@page("owner", form=index)
async def add(request: Request) -> Response:
    """Another member; the link that signs them in is shown once."""
    check_confirmed(request)
    platform, form = platform_of(request), await form_of(request)
    name, role = text_of(form, "name").strip(), _role(text_of(form, "role"))
    note(request, name=name, role=role)

    def verb(connection: Connection) -> str:
        return new_link(connection, add_member(connection, name=name, role=role))

    return await _shown_once(request, f"{name} can sign in by this link, once and within an hour",
                             _link(request, await platform.database.write(verb)))  # fmt: skip


@page("owner")
async def change(request: Request) -> Response:
    """Another role."""
    check_confirmed(request)
    form = await form_of(request)
    role = _role(text_of(form, "role"))
    note(request, role=role)
    await platform_of(request).database.write(
        partial(change_member, member_id=request.path_params["id"], role=role)
    )
    return go("/members", "Saved.")


@page("owner")
async def link(request: Request) -> Response:
    """A fresh link for somebody."""
    check_confirmed(request)
    member_id = request.path_params["id"]

    def verb(connection: Connection) -> tuple[str, str]:
        member = find_member(connection, member_id)
        return str(member.name), new_link(connection, member.id)

    name, value = await platform_of(request).database.write(verb)
    return await _shown_once(
        request, f"{name} can sign in by this link, once and within an hour", _link(request, value)
    )


@page("owner")
async def remove(request: Request) -> Response:
    """Remove one with their sessions and tokens."""
    await platform_of(request).database.write(partial(remove_member, named=request.path_params["id"]))
    return go("/members", "Removed.")


@page("viewer", form=index)
async def add_token(request: Request) -> Response:
    """A token in one's own name, shown once."""
    check_confirmed(request)
    form, visitor = await form_of(request), visitor_of(request)
    name, scope, life = text_of(form, "name").strip(), text_of(form, "scope"), text_of(form, "life")
    if scope not in SCOPES or life not in LIVES or not name:
        raise Malformed("A token needs a name, a scope and how long it lives.")
    scopes = read_scopes(text_of(form, "scopes").replace(",", " ").split())
    note(request, name=name, scope=text_of(form, "scopes")[:200] or scope, days=LIVES[life])
    days = LIVES[life]
    _, token = await platform_of(request).database.write(
        partial(
            new_token,
            member_id=visitor.member_id,
            name=name,
            scope=scope,
            scopes=scopes,
            life=None if days is None else days * 86400.0,
        )
    )
    return await _shown_once(request, f"The token {name}; it is shown this once", token)


@page("viewer")
async def remove_token(request: Request) -> Response:
    """End a token: one's own, or an owner anybody's."""
    visitor = visitor_of(request)
    only = None if visitor.may("owner") else visitor.member_id
    await platform_of(request).database.write(
        partial(revoke_token, token_id=request.path_params["id"], member_id=only)
    )
    return go("/members", "The token is void from now on.")


@page("viewer")
async def end_session(request: Request) -> Response:
    """End a session: one's own, or an owner anybody's."""
    visitor = visitor_of(request)
    only = None if visitor.may("owner") else visitor.member_id
    await platform_of(request).database.write(
        partial(end_sessions, member_id=only, session_id=request.path_params["id"])
    )
    return go("/members", "That session is over.")


@page("viewer")
async def end_other_sessions(request: Request) -> Response:
    """End one's sessions everywhere else."""
    here = caller_of(request).session
    ended = await platform_of(request).database.write(
        partial(end_sessions, member_id=visitor_of(request).member_id, keep=here)
    )
    return go("/members", f"You are signed out everywhere else; sessions ended: {ended}.")


def _link(request: Request, value: str) -> str:
    base = platform_of(request).settings.public_url.rstrip("/") or str(request.base_url).rstrip("/")
    return f"{base}/link/{value}"


async def _shown_once(request: Request, words: str, value: str) -> Response:
    """The page with something that is kept nowhere else; not a redirect, which would have to carry it."""
    visitor = visitor_of(request)
    only = None if visitor.may("owner") else visitor.member_id
    found = await platform_of(request).database.read(partial(read, only=only))
    return _page(request, found, {"words": words, "value": value})
