"""The first owner of a fresh install."""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection

from gofer.errors import ConfigError, Malformed
from gofer.platform import Platform
from gofer.web.access.members import change_member, first_owner, owner_has_password
from gofer.web.access.passwords import Passwords


async def settle_owner(platform: Platform) -> None:
    """See that there is an owner, with the password of the settings if none has one yet."""
    await platform.database.write(first_owner)
    given = platform.settings.owner_password
    if not given or await platform.database.read(owner_has_password):
        return
    try:
        hashed = await Passwords().hashed(given)
    except Malformed as error:
        raise ConfigError(f"GOFER_OWNER_PASSWORD: {error}") from None
    await platform.database.write(partial(_set, password=hashed))


def _set(connection: Connection, password: str) -> None:
    if not owner_has_password(connection):
        change_member(connection, first_owner(connection).id, password=password)
