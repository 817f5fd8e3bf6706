"""Members: who may sign in, and their links and passwords."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.errors import Forbidden
from gofer.vault.redaction import Secret
from gofer.web.api.http import ApiAnswer, RequestModel, platform_of
from gofer.web.auth import Role, Visitor, caller_of, note, visitor_of
from gofer.web.auth.confirmation import check_confirmed, check_password, confirm
from gofer.web.auth.members import (
    LINK_LIFE,
    add_member,
    change_member,
    digest,
    find_member,
    first_owner,
    remove_member,
)
from gofer.web.auth.passwords import LONGEST, SHORTEST, Passwords
from gofer.web.auth.sessions import end_sessions, list_sessions
from gofer.web.queries.members import describe_member, described_members, make_link

Password = Annotated[Secret, Field(json_schema_extra={"minLength": SHORTEST, "maxLength": LONGEST})]
KEEP_TOKENS = "Whether tokens outlive the old password; they end with it unless asked not to."
NAME = r"^[a-z0-9][a-z0-9._-]{0,39}$"


class NewMember(RequestModel):
    """A member to add."""

    name: str = Field(pattern=NAME)
    role: Role = "viewer"
    password: Password | None = Field(default=None, description="Without one they sign in by a link.")


class MemberChange(RequestModel):
    """What to change of a member."""

    name: str | None = Field(default=None, pattern=NAME)
    role: Role | None = None
    password: Password | None = Field(default=None, description="Ends their sessions and tokens.")
    keep_tokens: bool = Field(default=False, description=KEEP_TOKENS)


class NewPassword(RequestModel):
    """A new password for oneself."""

    current: Secret | None = Field(
        default=None, description="The one in use; not needed while there is none."
    )
    password: Password
    keep_tokens: bool = Field(default=False, description=KEEP_TOKENS)


async def me(request: Request) -> dict[str, Any]:
    """Show who is asking, and what they may do."""
    visitor = visitor_of(request)
    shown = {"member_id": visitor.member_id, "name": visitor.name, "role": visitor.role, "via": visitor.via}
    scopes = dict(visitor.scopes) if visitor.scopes is not None else None
    return {**shown, "scopes": scopes, "agent": visitor.agent}


class Confirmed(RequestModel):
    """The password that confirms who is asking."""

    password: Secret


async def confirm_me(request: Request, given: Confirmed) -> dict[str, Any]:
    """Confirm your password before you make tokens, keys, members or secrets."""
    visitor = _signed_in(request)
    await confirm(platform_of(request), request, given.password.reveal())
    return {"id": visitor.member_id, "name": visitor.name}


async def sessions(request: Request) -> dict[str, Any]:
    """List your own sessions."""
    visitor = visitor_of(request)
    if visitor.scopes is not None:
        raise Forbidden("A token with scopes of its own does not see where its member is signed in.")
    found = await platform_of(request).database.read(
        list_sessions, member_id=visitor.member_id, current=caller_of(request).session
    )
    for each in found:
        del each["member"]
    return {"sessions": found}


async def end_session(request: Request) -> dict[str, Any]:
    """End one of your own sessions."""
    visitor, session_id = _signed_in(request), request.path_params["id"]
    await platform_of(request).database.write(
        end_sessions, member_id=visitor.member_id, session_id=session_id
    )
    return {"id": session_id}


async def end_other_sessions(request: Request) -> dict[str, Any]:
    """End all of your own sessions but the one that asks."""
    visitor, here = _signed_in(request), caller_of(request).session
    ended = await platform_of(request).database.write(end_sessions, member_id=visitor.member_id, keep=here)
    return {"ended": ended}


def _signed_in(request: Request) -> Visitor:
    """Whoever asks with a browser's session; raises Forbidden."""
    visitor = visitor_of(request)
    if visitor.via != "session":
        raise Forbidden("Only somebody who is signed in with a browser has sessions.")
    return visitor


async def index(request: Request) -> dict[str, Any]:
    """List members."""
    await _settled(request)
    found = await platform_of(request).database.read(described_members)
    return {"members": found}


async def _settled(request: Request) -> None:
    """A command may be the first thing that ever happens here."""
    if visitor_of(request).via == "socket":
        await platform_of(request).database.write(first_owner)


async def add(request: Request, new: NewMember) -> ApiAnswer:
    """Add a member."""
    platform = platform_of(request)
    note(request, name=new.name, role=new.role)
    hashed = await _hashed(new.password)
    member_id = await platform.database.write(add_member, name=new.name, role=new.role, password=hashed or "")
    row = await platform.database.read(find_member, named=member_id)
    return ApiAnswer(describe_member(row), location=f"/members/{member_id}")


async def show(request: Request) -> dict[str, Any]:
    """Show a member."""
    row = await platform_of(request).database.read(find_member, named=request.path_params["id"])
    return describe_member(row)


async def change(request: Request, body: MemberChange) -> dict[str, Any]:
    """Change a member's name, role or password."""
    platform = platform_of(request)
    await _settled(request)
    note(request, fields=sorted(body.model_fields_set), role=body.role)
    hashed = await _hashed(body.password)
    row = await platform.database.write(
        _change,
        named=request.path_params["id"],
        name=body.name,
        role=body.role,
        password=hashed,
        keep_tokens=body.keep_tokens,
    )
    return describe_member(row)


def _change(connection: Connection, /, named: str, **values: Any) -> Any:
    member_id = find_member(connection, named).id
    change_member(connection, member_id, **values)
    return find_member(connection, member_id)


async def _hashed(password: Secret | None) -> str | None:
    return await Passwords().hashed(password.reveal()) if password is not None else None


async def remove(request: Request) -> dict[str, Any]:
    """Remove a member, with their sessions and tokens."""
    gone = await platform_of(request).database.write(remove_member, named=request.path_params["id"])
    return {"id": gone}


async def link(request: Request) -> ApiAnswer:
    """Make a one-time link that signs a member in."""
    platform = platform_of(request)
    member, value = await platform.database.write(make_link, member=request.path_params["id"])
    base = platform.settings.public_url.rstrip("/") or platform.url or _usual(platform.settings)
    return ApiAnswer({"member": member, "url": f"{base}/link/{value}", "expires_in": LINK_LIFE}, masked=False)


def _usual(settings: Any) -> str:
    """Where a server would listen that does not run now."""
    return f"http://{settings.host}:{settings.port}"


async def set_password(request: Request, given: NewPassword) -> dict[str, Any]:
    """Set your own password. Your other sessions and your tokens end."""
    platform, visitor, caller = platform_of(request), visitor_of(request), caller_of(request)
    if visitor.via != "session":
        raise Forbidden("Only somebody who is signed in sets their own password.")
    row = await platform.database.read(find_member, named=visitor.member_id)
    if row.password:
        await check_password(platform, request, given.current.reveal() if given.current is not None else "")
    else:
        check_confirmed(request)
    hashed = await Passwords().hashed(given.password.reveal())
    keep = digest(caller.session)
    await platform.database.write(
        change_member, member_id=row.id, password=hashed, keep_session=keep, keep_tokens=given.keep_tokens
    )
    return {"id": row.id, "name": row.name}
