"""Questions of a role: asked in the private chat of everybody who has it, and open on the dashboard and command line.

Any job with a conversation can ask one: its handler returns what `ask_role` gives, and finds the answer with
`gofer.jobs.control.answer_to` when it is called again. The first answer counts, the other places are told, and whoever
has lost the role by then may not answer any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from gofer.connections.context import LoadedConnection
from gofer.identity import WEB_CHAT, linked_identities, people_of
from gofer.jobs.control import ROLES
from gofer.jobs.outcome import Draft, Wait
from gofer.jobs.queue import lock_lane
from gofer.secrets.rotation import new_conversation_key
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.messages import binding_at
from gofer.store.tables import bindings, conversations, messages
from gofer.vault.envelope import Vault


def ask_role(
    connection: Connection,
    connected: Sequence[LoadedConnection],
    *,
    role: str,
    workspace_id: str,
    text: str,
    about: str,
    choices: tuple[str, ...],
    expires_after: float | None = None,
) -> Wait:
    """A question to everybody who has a role (`OWNERS` or `MEMBERS`). `about` is what it is known by, and signed."""
    drafts = [
        Draft(binding, tuple(one.integration.split(text)), "note")
        for one, binding in private_chats(connection, connected, workspace_id, ROLES[role])
    ]
    return Wait(text, about, role, expires_after, tuple(drafts), choices=choices)


def own_conversation(connection: Connection, vault: Vault, *, kind: str, title: str) -> str:
    """The platform's own conversation of a kind, which its questions belong to; made when it is first needed."""
    lock_lane(connection, kind)
    found = connection.execute(
        select(conversations.c.id)
        .where(conversations.c.kind == kind, conversations.c.purged_at.is_(None))
        .with_for_update()
    ).scalar()
    if found is not None:
        return str(found)
    id_ = new_id("conv")
    connection.execute(
        insert(conversations).values(
            id=id_,
            workspace_id=FIRST_WORKSPACE,
            kind=kind,
            title=title,
            data_key=new_conversation_key(connection, vault, id_),
            last_seq=0,
            created_at=now(),
        )
    )
    return id_


def private_chats(
    connection: Connection, connected: Sequence[LoadedConnection], workspace_id: str, roles: Sequence[str]
) -> Iterator[tuple[LoadedConnection, str]]:
    """Where people with one of these roles can be reached alone, each place once."""
    for one in connected:
        if not one.enabled:
            continue
        for subject in people_of(connection, workspace_id, one.integration.name, roles):
            if (found := _private_chat(connection, one, subject)) is not None:
                yield one, str(found.id)


def _private_chat(connection: Connection, one: LoadedConnection, subject: str) -> Row[Any] | None:
    place = one.integration.private_place(subject)
    return binding_at(connection, one.account.id, place) if place is not None else None


def last_web_rooms(
    connection: Connection, connected: Sequence[LoadedConnection], workspace_id: str, roles: Sequence[str]
) -> Iterator[Any]:
    """The bindings of the rooms of the web chat in which those wrote last who have no private chat anywhere."""
    for member_id in people_of(connection, workspace_id, WEB_CHAT, roles):
        known = linked_identities(
            connection, workspace_id=workspace_id, integration=WEB_CHAT, subject=member_id
        )
        if not _is_reached(connection, connected, known):
            here = [one.account.id for one in connected if one.enabled and one.integration.name == WEB_CHAT]
            query = _WEB_ROOMS.where(
                bindings.c.connection_id.in_(here),
                bindings.c.ref.startswith(f"{member_id}:", autoescape=True),
            )
            yield from connection.execute(query.limit(1)).all()


def _is_reached(
    connection: Connection, connected: Sequence[LoadedConnection], known: Mapping[str, str]
) -> bool:
    return any(
        one.enabled and _private_chat(connection, one, known[one.integration.name]) is not None
        for one in connected
        if one.integration.name in known
    )


_WEB_ROOMS = (
    select(bindings.c.id, bindings.c.conversation_id, bindings.c.connection_id)
    .join(conversations, conversations.c.id == bindings.c.conversation_id)
    .join(
        messages,
        (messages.c.conversation_id == conversations.c.id) & (messages.c.seq == conversations.c.last_seq),
    )
    .where(conversations.c.purged_at.is_(None))
    .order_by(messages.c.created_at.desc())
)
