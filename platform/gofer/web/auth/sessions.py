"""Sessions of browsers and tokens of programs: made, recognised, ended. Only hashes are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, update

from gofer.errors import NotFound
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import api_tokens, members, web_sessions
from gofer.web.auth.members import digest, find_member, new_value
from gofer.web.auth.principal import (
    AGENT_NOUNS,
    AGENT_WORD,
    AS_ROLE,
    SCOPES,
    Scope,
    Visitor,
    bound_agent,
    lesser,
    read_scopes,
)

LIFE = 30 * 86400.0
IDLE = 7 * 86400.0
"""Seconds after which a session ends: at the latest, and without a visit."""
SEEN_EVERY = 60.0
CONFIRMED_FOR = 900.0
"""Seconds after a password or a link in which a session may make tokens, keys, members and secrets."""
SHOWN = 16
"""Characters of a session's digest that name it to its owner."""
MAX_SESSIONS = 50
"""Sessions of one member; the oldest end first."""
TOKEN_LIFE = 90 * 86400.0
"""Seconds that a token is valid unless its maker says otherwise."""
TOKEN = "gofer_"  # noqa: S105 - what tokens begin with, so that leaks are found by scanners


@dataclass(frozen=True, slots=True)
class Recognised:
    """The member that a cookie or token belongs to."""

    visitor: Visitor
    stale: bool
    """Whether it is time to note that it was seen."""
    confirmed: bool = False
    """Whether a session's owner gave their password or a link within the last quarter of an hour."""


def begin_session(connection: Connection, member_id: str, *, by: str, address: str, agent: str) -> str:
    """Sign a member in; returns the cookie's value."""
    value = new_value()
    mine = web_sessions.c.member_id == member_id
    connection.execute(delete(web_sessions).where(mine, web_sessions.c.expires_at < now()))
    newest = (
        select(web_sessions.c.digest).where(mine).order_by(web_sessions.c.seen_at.desc()).limit(MAX_SESSIONS)
    )
    kept = list(connection.execute(newest).scalars())[: MAX_SESSIONS - 1]
    connection.execute(delete(web_sessions).where(mine, web_sessions.c.digest.not_in(kept)))
    row = {
        "digest": digest(value),
        "member_id": member_id,
        "by": by,
        "address": address,
        "agent": agent[:200],
    }
    times = {"created_at": now(), "seen_at": now(), "expires_at": now() + LIFE}
    row_macs.insert(connection, web_sessions, {**row, **times})
    connection.execute(update(members).where(members.c.id == member_id).values(signed_in_at=now()))
    return value


def end_session(connection: Connection, value: str) -> None:
    """Sign a browser out."""
    connection.execute(delete(web_sessions).where(web_sessions.c.digest == digest(value)))


def by_session(connection: Connection, value: str) -> Recognised | None:
    """The member whose session it is; None when it has ended."""
    row = connection.execute(
        select(
            members,
            web_sessions,
            (now() - web_sessions.c.seen_at).label("unseen"),
            (now() - func.coalesce(web_sessions.c.confirmed_at, web_sessions.c.created_at)).label(
                "unconfirmed"
            ),
        )
        .join(web_sessions, web_sessions.c.member_id == members.c.id)
        .where(web_sessions.c.digest == digest(value))
        .where(web_sessions.c.expires_at > now(), web_sessions.c.seen_at > now() - IDLE)
    ).one_or_none()
    if row is None or not _right(connection, web_sessions, row):
        return None
    visitor = Visitor(row.id, row.name, row.role, "session")
    return Recognised(visitor, row.unseen > SEEN_EVERY, row.unconfirmed < CONFIRMED_FOR)


def session_seen(connection: Connection, value: str) -> None:
    """Note when the session was last used."""
    connection.execute(
        update(web_sessions).where(web_sessions.c.digest == digest(value)).values(seen_at=now())
    )


def confirm_session(connection: Connection, value: str) -> None:
    """Note that the session's owner has just given their password."""
    row_macs.update(connection, web_sessions, web_sessions.c.digest == digest(value), {"confirmed_at": now()})


def list_sessions(connection: Connection, member_id: str | None, current: str) -> list[dict[str, Any]]:
    """The sessions of a member, or of everybody when None, the one seen last first."""
    query = (
        select(web_sessions, members.c.name)
        .join(members, members.c.id == web_sessions.c.member_id)
        .where(web_sessions.c.expires_at > now(), web_sessions.c.seen_at > now() - IDLE)
        .order_by(web_sessions.c.seen_at.desc())
    )
    if member_id is not None:
        query = query.where(web_sessions.c.member_id == member_id)
    here = digest(current)
    return [
        {
            "id": row.digest[:SHOWN],
            "member": row.name,
            "by": row.by,
            "address": row.address,
            "agent": row.agent,
            "created_at": row.created_at,
            "seen_at": row.seen_at,
            "current": row.digest == here,
        }
        for row in connection.execute(query)
    ]


def end_sessions(
    connection: Connection, member_id: str | None, *, session_id: str = "", keep: str = ""
) -> int:
    """End a session by what names it, or all but one; of a member, or of anybody when None. Raises NotFound."""
    here = delete(web_sessions)
    if member_id is not None:
        here = here.where(web_sessions.c.member_id == member_id)
    if session_id:
        here = here.where(func.substr(web_sessions.c.digest, 1, SHOWN) == session_id)
    if keep:
        here = here.where(web_sessions.c.digest != digest(keep))
    ended = connection.execute(here).rowcount
    if session_id and not ended:
        raise NotFound("There is no such session; it may have ended already.")
    return ended


def csrf_for(session: str) -> str:
    """What a form of this session must send along. Follows from the cookie's value, which no other site can read."""
    return hashlib.sha256(f"csrf:{session}".encode("utf-8", "surrogatepass")).hexdigest()


def new_token(
    connection: Connection,
    member_id: str,
    *,
    name: str,
    scope: Scope,
    scopes: Mapping[str, Scope] | None = None,
    life: float | None = TOKEN_LIFE,
    agent: str = "",
) -> tuple[str, str]:
    """A token's id and the token itself, which is shown this once. With `scopes` it is for those nouns only, with an
    agent for what is that agent's. Raises RowRefused for a member who gets in nowhere."""
    if agent and not scopes:
        scopes = dict.fromkeys(AGENT_NOUNS, scope)
    words = [f"{noun}:{scopes[noun]}" for noun in sorted(scopes)] if scopes else []
    row_macs.require(connection, members, find_member(connection, member_id))
    token_id, value = new_id("token"), TOKEN + new_value()
    row = {
        "id": token_id,
        "member_id": member_id,
        "name": name,
        "digest": _narrow_digest(value) if scopes else digest(value),
        "scope": max(scopes.values(), key=SCOPES.index) if scopes else scope,
        "scopes": " ".join([*([AGENT_WORD + agent] if agent else []), *words]) or None,
        "created_at": now(),
        "expires_at": now() + life if life is not None else None,
    }
    row_macs.insert(connection, api_tokens, row)
    return token_id, value


def _narrow_digest(value: str) -> str:
    """A release that knows nothing of scopes per noun must not find the token: it would let it do everything."""
    return digest(f"scopes:{value}")


def by_token(connection: Connection, value: str) -> Recognised | None:
    """The member whose token it is; None when it is unknown or has ended."""
    row = connection.execute(
        select(
            members,
            api_tokens,
            api_tokens.c.id.label("token_id"),
            (now() - api_tokens.c.used_at).label("unused"),
        )
        .join(api_tokens, api_tokens.c.member_id == members.c.id)
        .where(api_tokens.c.digest.in_((digest(value), _narrow_digest(value))))
        .where(api_tokens.c.expires_at.is_(None) | (api_tokens.c.expires_at > now()))
    ).one_or_none()
    if row is None or not _right(connection, api_tokens, row):
        return None
    role = lesser(row.role, AS_ROLE[row.scope])
    scopes, agent = None, ""
    if row.scopes is not None:
        words = row.scopes.split()
        agent = bound_agent(words)
        asked = read_scopes(word for word in words if not word.startswith(AGENT_WORD))
        scopes = {noun: lesser(row.role, AS_ROLE[scope]) for noun, scope in asked.items()}
    if agent and row.role != "owner":
        return None  # it sees everything that its agent is told, also in private
    visitor = Visitor(row.id, row.name, role, "token", row.token_id, scopes, agent=agent)
    return Recognised(visitor, row.unused is None or row.unused > SEEN_EVERY)


def _right(connection: Connection, table: Table, row: Any) -> bool:
    """Whether Gofer itself wrote the session or token, and its member."""
    return row_macs.fits(connection, table, row) and row_macs.fits(connection, members, row)


def token_used(connection: Connection, token_id: str) -> None:
    """Note when the token was last used."""
    connection.execute(update(api_tokens).where(api_tokens.c.id == token_id).values(used_at=now()))


def revoke_token(connection: Connection, token_id: str, member_id: str | None) -> None:
    """Delete a token of a member, or of anybody when None; raises NotFound."""
    here = delete(api_tokens).where(api_tokens.c.id == token_id)
    if member_id is not None:
        here = here.where(api_tokens.c.member_id == member_id)
    if connection.execute(here).rowcount == 0:
        raise NotFound(f"There is no token {token_id[:40]!r}. `gofer tokens list` shows those there are.")
