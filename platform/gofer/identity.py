"""People: pairing them by a code, letting them in, and keeping strangers within bounds."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, and_, bindparam, delete, func, select, update

from gofer.errors import Conflict, NotFound
from gofer.integration import Role
from gofer.sanitize import display_name
from gofer.store import events as log
from gofer.store import fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.encryption import data_key
from gofer.store.fast_sql import upsert
from gofer.store.ids import new_id
from gofer.store.messages import column_text, open_stored
from gofer.store.tables import (
    SCHEDULE,
    connections,
    conversations,
    identities,
    members,
    messages,
    pairings,
    principals,
    strangers,
)
from gofer.vault.errors import Tampered

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # without look-alikes: people type these on phones
CODE_LENGTH = 8
CODE_LIFE = 3600.0
MAX_CODES = 3
MAX_GUESSES = 5
"""Wrong codes from one person within an hour, after which none is looked at."""
MAX_GUESSES_IN_ALL = 30
"""The same from everybody together: many accounts are no way around."""
TOLD_EVERY = 86400.0


class TooManyGuesses(Conflict):
    """Too many wrong codes came in; none is taken for an hour."""

    code = "pairing.locked"


def new_code(
    connection: Connection,
    *,
    workspace_id: str,
    connection_id: str,
    role: Role = "owner",
    principal_id: str | None = None,
) -> str:
    """A fresh code for a connection; raises Conflict while three others are open."""
    of_connection = pairings.c.connection_id == connection_id
    connection.execute(delete(pairings).where(of_connection, pairings.c.expires_at < now()))
    open_ones = select(func.count()).select_from(pairings).where(of_connection, pairings.c.used_at.is_(None))
    if int(connection.execute(open_ones).scalar_one()) >= MAX_CODES:
        raise Conflict(
            f"{MAX_CODES} codes are open already. Use one of them, or wait until one is an hour old."
        )
    code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
    row = {
        "id": new_id("pair"),
        "workspace_id": workspace_id,
        "connection_id": connection_id,
        "digest": _digest(connection_id, code),
        "role": role,
        "created_at": now(),
        "expires_at": now() + CODE_LIFE,
        "used_by": "",
        "principal_id": principal_id,
    }
    row_macs.insert(connection, pairings, row)
    return code


def _digest(connection_id: str, code: str) -> str:
    plain = "".join(code.upper().split()).replace("-", "")
    return hashlib.sha256(f"{connection_id}:{plain}".encode()).hexdigest()


def redeem(
    connection: Connection, *, connection_id: str, integration: str, subject: str, name: str, code: str
) -> Role | None:
    """Pair somebody by a code; None when it is wrong, which is counted. Raises TooManyGuesses."""
    if _guessed(connection, connection_id, subject) >= MAX_GUESSES:
        raise TooManyGuesses
    if _guessed(connection, connection_id, None) >= MAX_GUESSES_IN_ALL:
        raise TooManyGuesses
    used = _used(connection, connection_id, subject, code)
    if used is None:
        _count_guess(connection, connection_id, subject)
        return None
    role: Role = "owner" if used.role == "owner" else "member"
    grant_role(
        connection,
        workspace_id=used.workspace_id,
        integration=integration,
        subject=subject,
        name=name,
        role=role,
        by="pairing code",
    )
    return role


def _used(connection: Connection, of: str, subject: str, code: str) -> Any:
    """The pairing that a code belongs to, used up; None when there is none."""
    here = (pairings.c.connection_id == of) & (pairings.c.digest == _digest(of, code))
    # The one who used it may say it again: the answer may have been lost.
    unused = pairings.c.used_at.is_(None) | (pairings.c.used_by == subject)
    usable = here & unused & (pairings.c.expires_at > now())
    try:
        used = row_macs.update(connection, pairings, usable, {"used_at": now(), "used_by": subject})
    except row_macs.RowRefused:
        return None
    return used[0] if used else None


def new_link(
    connection: Connection, *, workspace_id: str, integration: str, subject: str, name: str = ""
) -> str | None:
    """A code with which somebody known here makes themselves known elsewhere; None for somebody unknown.

    With a name it works only for who is called so there: that code may be said where others read along.
    """
    found = known_principal(connection, workspace_id, integration, subject)
    if found is None:
        return None
    links = _links(workspace_id, name)
    return new_code(
        connection, workspace_id=workspace_id, connection_id=links, role=found.role, principal_id=found.id
    )


def link(
    connection: Connection,
    *,
    workspace_id: str,
    connection_id: str,
    integration: str,
    subject: str,
    code: str,
    name: str = "",
) -> bool:
    """Make whoever presents a code the person who made it; a wrong one is counted. Raises TooManyGuesses.

    `name` is what the presenter alone is called there, where others read along. A code that somebody else than
    the one it was made for presents is spent: it was read by the wrong people.
    """
    if _guessed(connection, connection_id, subject) >= MAX_GUESSES:
        raise TooManyGuesses
    presenter = f"{integration}:{subject}"
    used = _used(connection, _links(workspace_id, name), presenter, code)
    if used is None:
        _spend(connection, workspace_id, presenter, code)
        _count_guess(connection, connection_id, subject)
        return False
    _put_identity(connection, workspace_id, integration, subject, str(used.principal_id))
    data = {"person": used.principal_id, "role": used.role, "by": f"link to {integration}"}
    log.record(connection, "person.let_in", workspace_id, data=data)
    return True


def _spend(connection: Connection, workspace_id: str, presenter: str, code: str) -> None:
    """Close the code, whoever it was made for."""
    open_ones = select(pairings.c.id, pairings.c.connection_id, pairings.c.digest).where(
        pairings.c.workspace_id == workspace_id,
        pairings.c.connection_id.startswith(_links(workspace_id), autoescape=True),
        pairings.c.used_at.is_(None),
    )
    for row in connection.execute(open_ones).all():
        if row.digest == _digest(row.connection_id, code):
            spent = {"used_at": now(), "used_by": presenter}
            with contextlib.suppress(row_macs.RowRefused):
                row_macs.update(connection, pairings, pairings.c.id == row.id, spent)


def linked_identities(
    connection: Connection, *, workspace_id: str, integration: str, subject: str
) -> dict[str, str]:
    """Who somebody is on other services, by the integration's name."""
    person = known_principal(connection, workspace_id, integration, subject)
    if person is None:
        return {}
    query = select(identities).where(
        identities.c.principal_id == person.id, identities.c.integration != integration
    )
    rows = connection.execute(query).all()
    return {row.integration: row.subject for row in rows if row_macs.fits(connection, identities, row)}


def _links(workspace_id: str, name: str = "") -> str:
    """What codes that link people are kept under: they may be presented at any connection, by anybody in private
    or by who is called so."""
    return f"link:{workspace_id}@{name.lower()}" if name else f"link:{workspace_id}"


def known_principal(connection: Connection, workspace_id: str, integration: str, subject: str) -> Any:
    """Id and role of whoever has an identity on a service; None for a stranger, and where a row is refused."""
    who = {"workspace": workspace_id, "service": integration, "who": subject}
    row = connection.execute(_KNOWN, who).one_or_none()
    if row is None:
        return None
    right = row_macs.fits(connection, identities, row) and row_macs.fits(connection, principals, row)
    return row if right else None


_KNOWN = (
    # The principal first, whose id and role are what the row is asked for.
    select(principals, identities)
    .join(identities, identities.c.principal_id == principals.c.id)
    .where(identities.c.workspace_id == bindparam("workspace"))
    .where(identities.c.integration == bindparam("service"), identities.c.subject == bindparam("who"))
)


def _put_identity(
    connection: Connection, workspace_id: str, integration: str, subject: str, principal_id: str
) -> None:
    """Make an identity a person's, and nobody else's. Whole: a row that was refused is not made right, but replaced."""
    here = {"workspace_id": workspace_id, "integration": integration, "subject": subject}
    connection.execute(
        delete(identities).where(*(identities.c[name] == value for name, value in here.items()))
    )
    row_macs.insert(connection, identities, {"id": new_id("ident"), "principal_id": principal_id, **here})


def _guessed(connection: Connection, connection_id: str, subject: str | None) -> int:
    query = select(func.coalesce(func.sum(strangers.c.guesses), 0)).where(
        strangers.c.connection_id == connection_id, strangers.c.guessing_since > now() - CODE_LIFE
    )
    if subject is not None:
        query = query.where(strangers.c.subject == subject)
    return int(connection.execute(query).scalar_one())


def _count_guess(connection: Connection, connection_id: str, subject: str) -> None:
    _know(connection, connection_id, subject)
    mine = (strangers.c.connection_id == connection_id) & (strangers.c.subject == subject)
    stale = strangers.c.guessing_since <= now() - CODE_LIFE
    connection.execute(update(strangers).where(mine, stale).values(guesses=0, guessing_since=now()))
    connection.execute(update(strangers).where(mine).values(guesses=strangers.c.guesses + 1))


def _know(connection: Connection, connection_id: str, subject: str) -> None:
    connection.execute(
        upsert(connection.dialect.name, strangers)
        .values(connection_id=connection_id, subject=subject, guesses=0, guessing_since=0)
        .on_conflict_do_nothing(index_elements=["connection_id", "subject"])
    )


def grant_role(
    connection: Connection,
    *,
    workspace_id: str,
    integration: str,
    subject: str,
    name: str,
    role: Role,
    by: str,
) -> str:
    """Make somebody a Principal, or raise a member's role; nobody's role is lowered here. Returns its id."""
    found = known_principal(connection, workspace_id, integration, subject)
    if found is not None:
        if role == "owner":
            row_macs.update(connection, principals, principals.c.id == found.id, {"role": role})
        return str(found.id)
    return _new_principal(connection, workspace_id, integration, subject, name, role, by)


def _new_principal(
    connection: Connection, workspace_id: str, integration: str, subject: str, name: str, role: str, by: str
) -> str:
    principal_id = new_id("person")
    row = {"id": principal_id, "workspace_id": workspace_id, "name": display_name(name), "role": role}
    row_macs.insert(connection, principals, {**row, "created_at": now()})
    _put_identity(connection, workspace_id, integration, subject, principal_id)
    log.record(
        connection, "person.let_in", workspace_id, data={"person": principal_id, "role": role, "by": by}
    )
    return principal_id


def owners_of(connection: Connection, *, workspace_id: str, integration: str) -> list[str]:
    """The ids owners have on a service, the first paired first."""
    return people_of(connection, workspace_id, integration, ("owner",))


def people_of(connection: Connection, workspace_id: str, integration: str, roles: Sequence[str]) -> list[str]:
    """The ids that people with one of these roles have on a service, the first paired first."""
    query = (
        select(principals, identities)
        .join(principals, principals.c.id == identities.c.principal_id)
        .where(identities.c.workspace_id == workspace_id, identities.c.integration == integration)
        .where(principals.c.role.in_(roles))
        .order_by(principals.c.created_at, principals.c.id)
    )
    return [
        str(row.subject)
        for row in connection.execute(query).all()
        if row_macs.fits(connection, identities, row) and row_macs.fits(connection, principals, row)
    ]


WEB_CHAT = "webchat"
"""The integration at which a Member's identity is their own id."""
_AS_PRINCIPAL = {"owner": "owner", "operator": "member"}


def put_member(connection: Connection, member_id: str, name: str, role: str, workspace_id: str) -> str:
    """See that a Member has a Principal; returns its id.

    Its role follows the Member's: at once when that falls, and when it rises only for somebody who is known nowhere
    else, because other roles are granted where they are known.
    """
    wanted = _AS_PRINCIPAL.get(role, "viewer")
    found = known_principal(connection, workspace_id, WEB_CHAT, member_id)
    if found is None:
        return _new_principal(connection, workspace_id, WEB_CHAT, member_id, name, wanted, "sign-in")
    ranks = ("viewer", "member", "owner")
    elsewhere = linked_identities(
        connection, workspace_id=workspace_id, integration=WEB_CHAT, subject=member_id
    )
    if ranks.index(wanted) < ranks.index(found.role) or (wanted != found.role and not elsewhere):
        row_macs.update(connection, principals, principals.c.id == found.id, {"role": wanted})
    return str(found.id)


def role_now(connection: Connection, workspace_id: str, integration: str, subject: str) -> str:
    """The role somebody has at this moment: a Member's own in the web chat, a Principal's elsewhere; empty for none."""
    if integration != WEB_CHAT:
        found = known_principal(connection, workspace_id, integration, subject)
        return str(found.role) if found is not None and found.role in ("owner", "member") else ""
    row = connection.execute(select(members).where(members.c.id == subject)).one_or_none()
    known = row is not None and row_macs.fits(connection, members, row)
    return _AS_PRINCIPAL.get(row.role, "") if known and row is not None else ""


def remove_identity(connection: Connection, workspace_id: str, integration: str, subject: str) -> None:
    """Take an identity from whoever has it; a Principal without any other is removed with it."""
    here = (
        (identities.c.workspace_id == workspace_id)
        & (identities.c.integration == integration)
        & (identities.c.subject == subject)
    )
    gone = connection.execute(delete(identities).where(here).returning(identities.c.principal_id)).scalar()
    left = select(identities.c.id).where(identities.c.principal_id == gone).limit(1)
    if gone is not None and connection.execute(left).first() is None:
        connection.execute(delete(principals).where(principals.c.id == gone))


def private_person(connection: Connection, conversation_id: str) -> str | None:
    """The id of the one Principal who reads a conversation; None when others may, or when nobody knows who it is."""
    last = fast_sql.first(connection, _LAST_AUTHOR, {"conversation": conversation_id})
    if last is None or not said_in_private(connection, last):
        return None
    return known_member(connection, last.workspace_id, last.integration, last.author)


def said_in_private(connection: Connection, row: Any) -> bool:
    """Whether a message was written in private, by whom and by which connection its row says.

    All three are in its sealed content. Whoever can write to the database can change the row's columns, and whether
    its conversation is private, but not what was sealed. The row has the conversation's `data_key`.
    """
    vault = row_macs.signing_of(connection).vault
    if vault is None or row.sealed is None:
        return False
    try:
        stored = open_stored(data_key(vault, row.conversation_id, row.data_key), row)
    except (Tampered, NotFound):
        return False
    said = stored.message
    by = (column_text(said.author.id), stored.connection_id)
    return said.private and by == (row.author, row.connection_id)


def known_member(connection: Connection, workspace_id: str, integration: str, subject: str) -> str | None:
    """The id of the owner or member with this identity; None for everybody else."""
    found = known_principal(connection, workspace_id, integration, subject)
    return str(found.id) if found is not None and found.role in ("owner", "member") else None


def by_a_person(said: FromClause) -> ColumnElement[bool]:
    """Condition: somebody wrote the message, and not an agent or a schedule."""
    return and_(said.c.event != SCHEDULE, said.c.author.not_like("agent:%"))


_LAST_AUTHOR = (
    select(
        messages.c.author,
        messages.c.seq,
        messages.c.sealed,
        messages.c.conversation_id,
        messages.c.connection_id,
        conversations.c.data_key,
        connections.c.integration,
        conversations.c.workspace_id,
    )
    .join(conversations, conversations.c.id == messages.c.conversation_id)
    .join(connections, connections.c.id == messages.c.connection_id)
    .where(messages.c.conversation_id == bindparam("conversation"), conversations.c.private.is_(True))
    .where(by_a_person(messages))
    .order_by(messages.c.seq.desc())
    .limit(1)
)


def may_notify(connection: Connection, connection_id: str, subject: str) -> bool:
    """Whether a stranger may be told once more; noted as told when so."""
    _know(connection, connection_id, subject)
    told = connection.execute(
        update(strangers)
        .where(strangers.c.connection_id == connection_id, strangers.c.subject == subject)
        .where(strangers.c.told_at.is_(None) | (strangers.c.told_at < now() - TOLD_EVERY))
        .values(told_at=now())
    )
    return told.rowcount == 1
