"""Who may know what: the one place that decides which memories may be recalled where, and how far a new one reaches.

The audience of a room is computed from who is there, never from what a model claims. What was said in a group stays in
the group. What was said in private follows that person to their other private conversations. What an agent may tell
everybody it talks to needs an owner's word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sqlalchemy import Connection, select

from gofer.errors import Forbidden, Malformed
from gofer.identity import by_a_person, known_member, private_person, said_in_private
from gofer.memory.scopes import AGENT, CONVERSATION, PERSON, agent_scope, conversation_scope, person_scope
from gofer.store.tables import connections, conversations, identities, messages

Reach = Literal["conversation", "person", "agent"]
MAX_ROOMS = 100
"""Other private conversations of a person that are searched: those in which something was said last."""
NARROWED = "This run has read strangers' text, so it remembers nothing beyond this conversation."
NOT_PRIVATE = "This is no private conversation, so nothing said here is one person's alone."
OWNERS_WORD = "Only an owner may have something remembered for everybody the agent talks to."


def audience(
    connection: Connection, conversation_id: str, agents: Iterable[str], *, narrowed: bool = False
) -> tuple[str, ...]:
    """The scopes that may be recalled in a conversation with these agents: everybody there may know them all. A run
    that has read strangers' text recalls its own conversation alone, because what it says next may go where strangers
    lead it."""
    here = conversation_scope(conversation_id)
    if narrowed:
        return (here,)
    scopes = [here, *map(agent_scope, agents)]
    person = private_person(connection, conversation_id)
    if person is not None:
        rooms = private_rooms(connection, person, besides=conversation_id)
        scopes += [person_scope(person), *map(conversation_scope, rooms)]
    return tuple(scopes)


def new_scope(
    connection: Connection,
    conversation_id: str,
    agent_id: str | None,
    *,
    wanted: str = "",
    by_owner: bool = False,
    narrowed: bool = False,
) -> str:
    """The scope of something that is to be remembered: by default the person's in private, and the conversation's
    elsewhere. Raises Forbidden for a scope that is wider than the room or than whoever asks may choose."""
    person = None if narrowed else private_person(connection, conversation_id)
    wanted = wanted or (PERSON if person is not None else CONVERSATION)
    if wanted == CONVERSATION:
        return conversation_scope(conversation_id)
    if narrowed:
        raise Forbidden(NARROWED)
    if wanted == PERSON:
        if person is None:
            raise Forbidden(NOT_PRIVATE)
        return person_scope(person)
    if wanted != AGENT:
        raise Malformed(f"{wanted[:40]!r} is no audience: say conversation, person or agent.")
    if not by_owner or not agent_id:
        raise Forbidden(OWNERS_WORD)
    return agent_scope(agent_id)


def private_rooms(connection: Connection, principal_id: str, besides: str = "") -> list[str]:
    """The private conversations with a person, the one in which something was said last first."""
    known = select(identities.c.integration, identities.c.subject).where(
        identities.c.principal_id == principal_id
    )
    subjects = {(row.integration, row.subject) for row in connection.execute(known)}
    if not subjects:
        return []
    # Whose a private conversation is depends on the last word of a person there. So a row or two of each conversation
    # are read, and not what everybody else has ever said.
    said = messages.alias()
    newest = said.c.seq.desc()
    last = select(said).where(said.c.conversation_id == conversations.c.id).order_by(newest).limit(1)
    of_a_person = last.where(by_a_person(said))
    columns = {
        name: of_a_person.with_only_columns(said.c[name]).scalar_subquery()
        for name in ("author", "connection_id", "seq", "sealed")
    }
    query = (
        select(
            conversations.c.id.label("conversation_id"),
            conversations.c.workspace_id,
            conversations.c.data_key,
            *(column.label(name) for name, column in columns.items()),
        )
        .where(conversations.c.private.is_(True), conversations.c.purged_at.is_(None))
        .where(conversations.c.id != besides, columns["author"].in_({subject for _, subject in subjects}))
        .order_by(last.with_only_columns(said.c.created_at).scalar_subquery().desc())
        .limit(MAX_ROOMS)
    )
    found = connection.execute(query).all()
    integrations = dict(connection.execute(select(connections.c.id, connections.c.integration)).all())
    by = [(row.workspace_id, integrations.get(row.connection_id, ""), row.author) for row in found]
    theirs = {
        who for who in set(by) if who[1:] in subjects and known_member(connection, *who) == principal_id
    }
    return [
        str(row.conversation_id)
        for row, who in zip(found, by, strict=True)
        if who in theirs and said_in_private(connection, row)
    ]
