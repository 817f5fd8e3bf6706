"""Members: who may sign in, and their links and passwords."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, Forbidden
from gofer.vault.secret import Secret
from gofer.web.access import Role, caller_of, delays, note, visitor_of
from gofer.web.access.members import (
    LINK_LIFE,
    add_member,
    change_member,
    digest,
    find_member,
    first_owner,
    list_members,
    new_link,
    remove_member,
)
from gofer.web.access.passwords import LONGEST, SHORTEST, Passwords
from gofer.web.control.asking import Nothing, Question, answered, asked, platform_of, shown_once

Password = Annotated[Secret, Field(json_schema_extra={"minLength": SHORTEST, "maxLength": LONGEST})]
NAME = r"^[a-z0-9][a-z0-9._-]{0,39}$"


class New(Question):
    """Somebody who may sign in from now on."""

    name: str = Field(pattern=NAME)
    role: Role = "viewer"
    password: Password | None = Field(default=None, description="Without one they sign in by a link.")


class Change(Question):
    """What to change of one."""

    name: str | None = Field(default=None, pattern=NAME)
    role: Role | None = None
    password: Password | None = Field(default=None, description="Ends their sessions.")


class NewPassword(Question):
    """One's own password."""

    current: Secret | None = Field(
        default=None, description="The one in use; not needed while there is none."
    )
    password: Password


async def me(request: Request) -> Response:
    """Who is asking, and what they may do."""
    shown = dataclasses.asdict(visitor_of(request))
    del shown["token_id"]
    return answered(request, shown)


async def index(request: Request) -> Response:
    """List members."""
    await _settled(request)
    found = await platform_of(request).database.read(list_members)
    return answered(request, {"members": [_told(row) for row in found]})


async def _settled(request: Request) -> None:
    """A command may be the first thing that ever happens here."""
    if visitor_of(request).via == "socket":
        await platform_of(request).database.write(first_owner)


def _told(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "has_password": bool(row.password),
        "created_at": row.created_at,
        "signed_in_at": row.signed_in_at,
    }


async def add(request: Request) -> Response:
    """Add a member."""
    platform, new = platform_of(request), await asked(request, New)
    note(request, name=new.name, role=new.role)
    hashed = await _hashed(new.password)
    member_id = await platform.database.write(
        partial(add_member, name=new.name, role=new.role, password=hashed or "")
    )
    row = await platform.database.read(partial(find_member, named=member_id))
    return answered(request, _told(row), 201, location=f"/members/{member_id}")


async def show(request: Request) -> Response:
    """One member."""
    row = await platform_of(request).database.read(partial(find_member, named=request.path_params["id"]))
    return answered(request, _told(row))


async def change(request: Request) -> Response:
    """Change a member's name, role or password."""
    platform, wish = platform_of(request), await asked(request, Change)
    await _settled(request)
    note(request, fields=sorted(wish.model_fields_set), role=wish.role)
    hashed = await _hashed(wish.password)
    row = await platform.database.write(
        partial(_change, named=request.path_params["id"], name=wish.name, role=wish.role, password=hashed)
    )
    return answered(request, _told(row))


def _change(connection: Connection, named: str, **values: Any) -> Any:
    member_id = find_member(connection, named).id
    change_member(connection, member_id, **values)
    return find_member(connection, member_id)


async def _hashed(password: Secret | None) -> str | None:
    return await Passwords().hashed(password.reveal()) if password is not None else None


async def remove(request: Request) -> Response:
    """Remove a member, with their sessions and tokens."""
    gone = await platform_of(request).database.write(partial(remove_member, named=request.path_params["id"]))
    return answered(request, {"id": gone})


async def link(request: Request) -> Response:
    """A one-time link that signs a member in."""
    platform = platform_of(request)
    await asked(request, Nothing)
    member, value = await platform.database.write(partial(_link, named=request.path_params["id"]))
    base = platform.settings.public_url.rstrip("/") or platform.url or _usual(platform.settings)
    return shown_once({"member": member, "url": f"{base}/link/{value}", "expires_in": LINK_LIFE}, 201)


def _usual(settings: Any) -> str:
    """Where a server would listen that does not run now."""
    return f"http://{settings.host}:{settings.port}"


def _link(connection: Connection, named: str) -> tuple[str, str]:
    row = find_member(connection, named)
    return str(row.name), new_link(connection, row.id)


async def set_password(request: Request) -> Response:
    """Set one's own password; other sessions end."""
    platform, visitor, caller = platform_of(request), visitor_of(request), caller_of(request)
    given = await asked(request, NewPassword)
    if visitor.via != "session":
        raise Forbidden("Only somebody who is signed in sets their own password.")
    row = await platform.database.read(partial(find_member, named=visitor.member_id))
    passwords = Passwords()
    if row.password:
        # Guessing here costs as much as at the door.
        await platform.database.write(partial(delays.attempt, name=row.name, address=caller.address))
        if given.current is None or not await passwords.fits(given.current.reveal(), row.password):
            raise Conflict("The current password is wrong.")
        await platform.database.write(partial(delays.succeeded, name=row.name, address=caller.address))
    hashed = await passwords.hashed(given.password.reveal())
    keep = digest(caller.session)
    await platform.database.write(
        partial(change_member, member_id=row.id, password=hashed, keep_session=keep)
    )
    return answered(request, {"id": row.id, "name": row.name})
