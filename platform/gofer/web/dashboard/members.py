"""Members and API tokens: who may come in, as what, and with which keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.web.auth import caller_of, note, visitor_of
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.auth.members import add_member, change_member, find_member, new_link, remove_member
from gofer.web.auth.principal import NOUNS, ROLES, SCOPES, Role, read_scopes
from gofer.web.auth.sessions import end_sessions, list_sessions, revoke_token
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries.members import described_members, list_tokens, make_link, make_token

LIVES = {"90": 90, "7": 7, "30": 30, "365": 365, "": None}
"""Days after which a token ends."""
MAX_SESSIONS_SHOWN = 50


@page("viewer")
async def index(request: Request) -> Response:
    """The lists; only an owner sees what belongs to others."""
    return await _page(request)


async def _page(request: Request, made: dict[str, str] | None = None) -> Response:
    """With `made`, something that is kept nowhere else and that a redirect would have to carry."""
    choices: dict[str, Any] = {"roles": ROLES, "scopes": SCOPES, "lives": list(LIVES), "nouns": NOUNS}
    session, only = caller_of(request).session, _whose(request)
    found = await platform_of(request).database.read(_read, only=only, session=session)
    return render(request, "members.html", **found, **choices, unmasked={"made": made})


def _read(connection: Connection, only: str | None, session: str) -> dict[str, Any]:
    people = described_members(connection)
    return {
        "members": [each for each in people if only in (None, each["id"])],
        "tokens": list_tokens(connection, only),
        "sessions": list_sessions(connection, only, session)[:MAX_SESSIONS_SHOWN],
    }


def _whose(request: Request) -> str | None:
    """The member whose tokens and sessions one may see and end: oneself; None for an owner, who may see everybody's."""
    visitor = visitor_of(request)
    return None if visitor.may("owner") else visitor.member_id


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

    return await _show_link(request, name, await platform.database.write(verb))


@page("owner")
async def change(request: Request) -> Response:
    """Another role."""
    check_confirmed(request)
    form = await form_of(request)
    role = _role(text_of(form, "role"))
    note(request, role=role)
    await platform_of(request).database.write(change_member, member_id=request.path_params["id"], role=role)
    return redirect("/members", "Saved.")


@page("owner")
async def link(request: Request) -> Response:
    """A fresh link for somebody."""
    check_confirmed(request)
    name, value = await platform_of(request).database.write(make_link, member=request.path_params["id"])
    return await _show_link(request, name, value)


@page("owner")
async def remove(request: Request) -> Response:
    """Remove one with their sessions and tokens."""
    await platform_of(request).database.write(remove_member, named=request.path_params["id"])
    return redirect("/members", "Removed.")


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

    def verb(connection: Connection) -> tuple[str, str]:
        member = find_member(connection, visitor.member_id)
        return make_token(connection, member, name=name, scope=scope, scopes=scopes, days=LIVES[life])

    _, token = await platform_of(request).database.write(verb)
    return await _page(request, {"words": f"The token {name}; it is shown this once", "value": token})


@page("viewer")
async def remove_token(request: Request) -> Response:
    """End a token: one's own, or an owner anybody's."""
    await platform_of(request).database.write(
        revoke_token, token_id=request.path_params["id"], member_id=_whose(request)
    )
    return redirect("/members", "The token is void from now on.")


@page("viewer")
async def end_session(request: Request) -> Response:
    """End a session: one's own, or an owner anybody's."""
    await platform_of(request).database.write(
        end_sessions, member_id=_whose(request), session_id=request.path_params["id"]
    )
    return redirect("/members", "That session is over.")


@page("viewer")
async def end_other_sessions(request: Request) -> Response:
    """End one's sessions everywhere else."""
    here = caller_of(request).session
    ended = await platform_of(request).database.write(
        end_sessions, member_id=visitor_of(request).member_id, keep=here
    )
    return redirect("/members", f"You are signed out everywhere else; sessions ended: {ended}.")


async def _show_link(request: Request, name: str, value: str) -> Response:
    base = platform_of(request).settings.public_url.rstrip("/") or str(request.base_url).rstrip("/")
    words = f"{name} can sign in by this link, once and within an hour"
    return await _page(request, {"words": words, "value": f"{base}/link/{value}"})
