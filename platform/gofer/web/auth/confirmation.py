"""Asks for the password again before somebody makes a token, a key, a member or a secret.

A browser left open, or a cookie that leaked, must not be enough to make a way in that outlives it.
"""

from __future__ import annotations

from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Conflict, Forbidden
from gofer.web.auth import login_throttle
from gofer.web.auth.members import digest, find_member
from gofer.web.auth.passwords import Passwords
from gofer.web.auth.principal import caller_of, visitor_of
from gofer.web.auth.sessions import confirm_session

CONFIRM = "/confirm"


class Unconfirmed(Forbidden):
    """Confirm that it is you: open /confirm in this browser and give your password, or follow a fresh sign-in link."""

    code = "unconfirmed"


def check_confirmed(request: Request) -> None:
    """Raises Unconfirmed for a session whose owner gave neither password nor link lately."""
    if visitor_of(request).via == "session" and not caller_of(request).confirmed:
        raise Unconfirmed


async def check_password(platform: Platform, request: Request, password: str) -> str:
    """The id of whoever is signed in, once they gave their password; raises Conflict and TooOften.

    Wrong guesses are throttled as at sign-in, and delay this session only.
    """
    visitor, caller = visitor_of(request), caller_of(request)
    row = await platform.database.read(find_member, named=visitor.member_id)
    tried = {"name": row.name, "address": caller.address, "device": f"session:{digest(caller.session)}"}
    await platform.database.write(login_throttle.attempt, **tried)
    if not row.password or not await Passwords().fits(password, row.password, known=True):
        raise Conflict("The current password is wrong.")
    await platform.database.write(login_throttle.clear_failures, **tried)
    return str(row.id)


async def confirm(platform: Platform, request: Request, password: str) -> None:
    """Note that whoever is signed in gave their password; raises Conflict and TooOften."""
    await check_password(platform, request, password)
    await platform.database.write(confirm_session, value=caller_of(request).session)
