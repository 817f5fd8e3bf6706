"""Members: who may sign in, with which role, and the links that sign them in."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select
from sqlalchemy.exc import IntegrityError

from gofer.app import Platform
from gofer.errors import ConfigError, Conflict, Malformed, NotFound
from gofer.identity import WEB_CHAT, put_member, remove_identity
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import api_tokens, devices, members, sign_in_links, web_sessions
from gofer.web.auth.passwords import Passwords
from gofer.web.auth.principal import Role

FIRST_MEMBER = "owner"
LINK_LIFE = 3600.0
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")

AnyRow = Row[*tuple[Any, ...]]


def new_value() -> str:
    """A random value for a cookie, a link or a token."""
    return secrets.token_urlsafe(32)


def digest(value: str) -> str:
    """The hash that is stored of a value. The value is random enough that a plain hash is as good as a slow one."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def checked_name(name: str) -> str:
    """A name to sign in with; raises Malformed."""
    name = name.strip().lower()
    if not NAME.fullmatch(name):
        raise Malformed("name: use up to 40 letters, digits, dots, dashes and underscores.")
    return name


def find_member(connection: Connection, named: str) -> AnyRow:
    """A member by id or name; raises NotFound."""
    here = (members.c.id == named) | (members.c.name == named.strip().lower())
    row = connection.execute(select(members).where(here).limit(1)).one_or_none()
    if row is None:
        raise NotFound(f"There is no member {named[:40]!r}. `gofer members list` shows those there are.")
    return row


def list_members(connection: Connection) -> list[AnyRow]:
    """Every member, in the order they were added."""
    return list(connection.execute(select(members).order_by(members.c.created_at, members.c.id)))


def add_member(connection: Connection, *, name: str, role: Role, password: str = "") -> str:
    """A new member, with a hashed password or none; returns the id. Raises Conflict."""
    member_id = new_id("member")
    row = {"id": member_id, "workspace_id": FIRST_WORKSPACE, "name": checked_name(name), "role": role}
    try:
        with connection.begin_nested():
            row_macs.insert(connection, members, {**row, "password": password, "created_at": now()})
    except IntegrityError:
        raise Conflict(f"There is a member {name!r} already.") from None
    put_member(connection, member_id, row["name"], role, FIRST_WORKSPACE)
    return member_id


def change_member(
    connection: Connection,
    member_id: str,
    *,
    name: str | None = None,
    role: Role | None = None,
    password: str | None = None,
    keep_session: str = "",
    keep_tokens: bool = False,
) -> None:
    """Change a member. A new password ends their other sessions, links and tokens. The last owner stays an owner."""
    member = find_member(connection, member_id)
    if role is not None and role != "owner":
        _spare_last_owner(connection, member)
    given = {"name": checked_name(name) if name is not None else None, "role": role, "password": password}
    values = {column: value for column, value in given.items() if value is not None}
    if not values:
        return
    try:
        with connection.begin_nested():
            row_macs.update(connection, members, members.c.id == member.id, values)
    except IntegrityError:
        raise Conflict(f"There is a member {name!r} already.") from None
    put_member(connection, member.id, values.get("name", member.name), role or member.role, FIRST_WORKSPACE)
    if password is not None:
        others = (web_sessions.c.member_id == member.id) & (web_sessions.c.digest != keep_session)
        connection.execute(delete(web_sessions).where(others))
        connection.execute(delete(sign_in_links).where(sign_in_links.c.member_id == member.id))
        # A first password replaces none that somebody else could have known.
        if member.password and not keep_tokens:
            connection.execute(delete(api_tokens).where(api_tokens.c.member_id == member.id))
            connection.execute(delete(devices).where(devices.c.member_id == member.id))


def remove_member(connection: Connection, named: str) -> str:
    """Remove a member with their sessions, links and tokens; returns the id."""
    member = find_member(connection, named)
    _spare_last_owner(connection, member)
    connection.execute(delete(members).where(members.c.id == member.id))
    remove_identity(connection, FIRST_WORKSPACE, WEB_CHAT, member.id)
    return str(member.id)


def _spare_last_owner(connection: Connection, member: AnyRow) -> None:
    # Two owners who remove each other at once must not both succeed.
    found = connection.execute(select(members).where(members.c.role == "owner").with_for_update()).all()
    owners = [row.id for row in found if row_macs.fits(connection, members, row)]
    if owners == [member.id]:
        raise Conflict(f"{member.name} is the only owner. Make somebody else one first.")


def oldest_owner(connection: Connection) -> AnyRow | None:
    """The owner for whom the command line speaks; None before there is one."""
    query = select(members).where(members.c.role == "owner").order_by(members.c.created_at, members.c.id)
    found = connection.execute(query).all()
    return next((row for row in found if row_macs.fits(connection, members, row)), None)


def first_owner(connection: Connection) -> AnyRow:
    """The owner of a fresh install, made when there is nobody."""
    owner = oldest_owner(connection)
    if owner is None:
        # Another process may have made it at the same moment.
        with contextlib.suppress(Conflict):
            add_member(connection, name=FIRST_MEMBER, role="owner")
        owner = find_member(connection, FIRST_MEMBER)
        row_macs.require(connection, members, owner)
    return owner


def somebody_signed_in(connection: Connection) -> bool:
    """Whether anybody has ever signed in."""
    return bool(connection.execute(select(func.count(members.c.signed_in_at))).scalar_one())


def owner_has_password(connection: Connection) -> bool:
    """Whether an owner can sign in from elsewhere."""
    query = select(members).where(members.c.role == "owner", members.c.password != "")
    return any(row_macs.fits(connection, members, row) for row in connection.execute(query).all())


def new_link(connection: Connection, member_id: str) -> str:
    """A fresh one-time link's token, for an hour; raises RowRefused for a member who gets in nowhere."""
    row_macs.require(connection, members, find_member(connection, member_id))
    connection.execute(delete(sign_in_links).where(sign_in_links.c.expires_at < now()))
    value = new_value()
    times = {"created_at": now(), "expires_at": now() + LINK_LIFE}
    row_macs.insert(connection, sign_in_links, {"digest": digest(value), "member_id": member_id, **times})
    return value


@dataclass(frozen=True, slots=True)
class Linked:
    """Whom a link would sign in."""

    member_id: str
    name: str
    has_password: bool


def linked(connection: Connection, value: str) -> Linked | None:
    """Whose link it is; None when it is used, old or unknown."""
    row = connection.execute(
        select(members, sign_in_links)
        .join(sign_in_links, sign_in_links.c.member_id == members.c.id)
        .where(sign_in_links.c.digest == digest(value))
        .where(sign_in_links.c.used_at.is_(None), sign_in_links.c.expires_at > now())
    ).one_or_none()
    if row is None or not row_macs.fits(connection, sign_in_links, row):
        return None
    return Linked(row.id, row.name, bool(row.password)) if row_macs.fits(connection, members, row) else None


def use_link(connection: Connection, value: str) -> Linked | None:
    """Use up a link: it signs in once."""
    found = linked(connection, value)
    if found is None:
        return None
    here = (sign_in_links.c.digest == digest(value)) & sign_in_links.c.used_at.is_(None)
    usable = here & (sign_in_links.c.expires_at > now())
    return found if row_macs.update(connection, sign_in_links, usable, {"used_at": now()}) else None


async def ensure_owner(platform: Platform) -> None:
    """Make an owner if there is none, with the password of the settings if no owner has one."""
    await platform.database.write(first_owner)
    await platform.database.write(_give_principals)
    given = platform.settings.owner_password
    if not given or await platform.database.read(owner_has_password):
        return
    try:
        hashed = await Passwords().hashed(given)
    except Malformed as error:
        raise ConfigError(f"GOFER_OWNER_PASSWORD: {error}") from None
    await platform.database.write(_set, password=hashed)


def _give_principals(connection: Connection) -> None:
    """Members of an older release have none yet."""
    for row in list_members(connection):
        if row_macs.fits(connection, members, row):
            put_member(connection, row.id, row.name, row.role, row.workspace_id)


def _set(connection: Connection, password: str) -> None:
    if not owner_has_password(connection):
        change_member(connection, first_owner(connection).id, password=password)
