"""Sessions of browsers and tokens of programs: made, recognised, ended. Only hashes are stored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from gofer.errors import NotFound
from gofer.store.clock import now
from gofer.store.ids import new_id
from gofer.store.tables import api_tokens, members, web_sessions
from gofer.web.access.members import digest, new_value
from gofer.web.access.visitor import AS_ROLE, Scope, Visitor, lesser

LIFE = 30 * 86400.0
IDLE = 7 * 86400.0
"""Seconds after which a session ends: at the latest, and without a visit."""
SEEN_EVERY = 60.0
MOST_SESSIONS = 50
"""Of one member; the oldest go first."""
TOKEN = "gofer_"  # noqa: S105 - what tokens begin with, so that leaks are found by scanners


@dataclass(frozen=True, slots=True)
class Recognised:
    """Whose cookie or token it is."""

    visitor: Visitor
    stale: bool
    """Whether it is time to note that it was seen."""


def begin_session(connection: Connection, member_id: str, *, by: str, address: str, agent: str) -> str:
    """Sign a member in; returns the cookie's value."""
    value = new_value()
    mine = web_sessions.c.member_id == member_id
    connection.execute(delete(web_sessions).where(mine, web_sessions.c.expires_at < now()))
    newest = (
        select(web_sessions.c.digest).where(mine).order_by(web_sessions.c.seen_at.desc()).limit(MOST_SESSIONS)
    )
    kept = list(connection.execute(newest).scalars())[: MOST_SESSIONS - 1]
    connection.execute(delete(web_sessions).where(mine, web_sessions.c.digest.not_in(kept)))
    row = {
        "digest": digest(value),
        "member_id": member_id,
        "by": by,
        "address": address,
        "agent": agent[:200],
    }
    connection.execute(
        insert(web_sessions).values(**row, created_at=now(), seen_at=now(), expires_at=now() + LIFE)
    )
    connection.execute(update(members).where(members.c.id == member_id).values(signed_in_at=now()))
    return value


def end_session(connection: Connection, value: str) -> None:
    """Sign a browser out."""
    connection.execute(delete(web_sessions).where(web_sessions.c.digest == digest(value)))


def by_session(connection: Connection, value: str) -> Recognised | None:
    """Whose session it is; None when it has ended."""
    row = connection.execute(
        select(members.c.id, members.c.name, members.c.role, (now() - web_sessions.c.seen_at).label("unseen"))
        .join(web_sessions, web_sessions.c.member_id == members.c.id)
        .where(web_sessions.c.digest == digest(value))
        .where(web_sessions.c.expires_at > now(), web_sessions.c.seen_at > now() - IDLE)
    ).one_or_none()
    if row is None:
        return None
    return Recognised(Visitor(row.id, row.name, row.role, "session"), row.unseen > SEEN_EVERY)


def session_seen(connection: Connection, value: str) -> None:
    """Note that it is in use."""
    connection.execute(
        update(web_sessions).where(web_sessions.c.digest == digest(value)).values(seen_at=now())
    )


def csrf_for(session: str) -> str:
    """What a form of this session must send along. Follows from the cookie's value, which no other site can read."""
    return hashlib.sha256(f"csrf:{session}".encode("utf-8", "surrogatepass")).hexdigest()


def new_token(
    connection: Connection, member_id: str, *, name: str, scope: Scope, life: float | None = None
) -> tuple[str, str]:
    """A token's id and the token itself, which is shown this once."""
    token_id, value = new_id("token"), TOKEN + new_value()
    connection.execute(
        insert(api_tokens).values(
            id=token_id,
            member_id=member_id,
            name=name,
            digest=digest(value),
            scope=scope,
            created_at=now(),
            expires_at=now() + life if life is not None else None,
        )
    )
    return token_id, value


def by_token(connection: Connection, value: str) -> Recognised | None:
    """Whose token it is; None when it is unknown or has ended."""
    row = connection.execute(
        select(
            members.c.id,
            members.c.name,
            members.c.role,
            api_tokens.c.id.label("token_id"),
            api_tokens.c.scope,
            (now() - api_tokens.c.used_at).label("unused"),
        )
        .join(api_tokens, api_tokens.c.member_id == members.c.id)
        .where(api_tokens.c.digest == digest(value))
        .where(api_tokens.c.expires_at.is_(None) | (api_tokens.c.expires_at > now()))
    ).one_or_none()
    if row is None:
        return None
    role = lesser(row.role, AS_ROLE[row.scope])
    visitor = Visitor(row.id, row.name, role, "token", row.token_id)
    return Recognised(visitor, row.unused is None or row.unused > SEEN_EVERY)


def token_used(connection: Connection, token_id: str) -> None:
    """Note that it is in use."""
    connection.execute(update(api_tokens).where(api_tokens.c.id == token_id).values(used_at=now()))


def revoke_token(connection: Connection, token_id: str, member_id: str | None) -> None:
    """Delete one: a member's own, or anybody's when None. Raises NotFound."""
    here = delete(api_tokens).where(api_tokens.c.id == token_id)
    if member_id is not None:
        here = here.where(api_tokens.c.member_id == member_id)
    if connection.execute(here).rowcount == 0:
        raise NotFound(f"There is no token {token_id[:40]!r}. `gofer tokens list` shows those there are.")
