"""Whether whoever opened a line may still have it: a stream outlives the request that was let in."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import HTTPConnection

from gofer.platform import Platform
from gofer.web.access.sessions import by_session, by_token
from gofer.web.access.visitor import NotSignedIn, Role, caller_of, narrowed, visitor_of

LOOK_AGAIN = 15.0
"""Seconds between two looks."""


async def check_still(platform: Platform, connection: HTTPConnection, role: Role) -> None:
    """Raises NotSignedIn once they have signed out, their token is revoked, or their role is taken away."""
    if visitor_of(connection).via == "socket":
        return
    session = caller_of(connection).session
    token = connection.headers.get("authorization", "").partition(" ")[2].strip()
    look = partial(by_session, value=session) if session else partial(by_token, value=token)
    found = await platform.database.read(look)
    if found is None or not narrowed(found.visitor, visitor_of(connection).noun).may(role):
        raise NotSignedIn("The session has ended.")


async def watch_over(platform: Platform, connection: HTTPConnection, role: Role) -> None:
    """Look again and again; ends by raising NotSignedIn."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        await check_still(platform, connection, role)
