"""Whose words somebody may read: one rule for pages, the API, its streams and memories.

An owner reads everything, which is on record. Anybody else reads what was said in groups and repositories, and what
they said in private themselves. A token that is bound to an agent reads what that agent is told.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, True_, or_, select, true, tuple_

from gofer.errors import NotFound
from gofer.identity import WEB_CHAT, linked_identities
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import (
    SCHEDULE,
    agents,
    bindings,
    connections,
    conversations,
    messages,
    participants,
)
from gofer.web.auth.principal import Visitor


def readable(connection: Connection, visitor: Visitor | None) -> ColumnElement[bool]:
    """The condition for conversations whose words somebody may read; Gofer itself, which is None, reads all."""
    if visitor is None:
        return true()
    if visitor.agent:
        heard = select(participants.c.conversation_id).join(agents, agents.c.id == participants.c.agent_id)
        return conversations.c.id.in_(heard.where(agents.c.name == visitor.agent))
    if visitor.may("owner"):
        return true()
    own_room = bindings.c.ref.startswith(f"{visitor.member_id}:", autoescape=True)
    opened = (
        select(bindings.c.id)
        .where(bindings.c.conversation_id == conversations.c.id, own_room)
        .correlate(conversations)
        .exists()
    )
    linked = linked_identities(
        connection, workspace_id=FIRST_WORKSPACE, integration=WEB_CHAT, subject=visitor.member_id
    )
    said = (
        select(messages.c.seq)
        .join(connections, connections.c.id == messages.c.connection_id)
        .where(messages.c.conversation_id == conversations.c.id, messages.c.event != SCHEDULE)
        .where(tuple_(connections.c.integration, messages.c.author).in_(list(linked.items())))
        .correlate(conversations)
        .exists()
    )
    return or_(conversations.c.private.is_not(True), opened, *([said] if linked else []))


def open_to(
    connection: Connection, visitor: Visitor | None, column: ColumnElement[str | None]
) -> ColumnElement[bool]:
    """The condition for rows of another table whose column names a conversation that somebody may read."""
    allowed = readable(connection, visitor)
    if isinstance(allowed, True_):  # no need to look at each
        return allowed
    return select(conversations.c.id).where(conversations.c.id == column, allowed).exists()


def is_readable(connection: Connection, conversation_id: str, visitor: Visitor | None) -> bool:
    """Whether somebody may read the words of an existing conversation."""
    query = select(conversations.c.id).where(conversations.c.id == conversation_id)
    return connection.execute(query.where(readable(connection, visitor))).first() is not None


def require_readable(connection: Connection, conversation_id: str, visitor: Visitor | None) -> None:
    """Raises NotFound, with the same words as for a conversation that does not exist."""
    if not is_readable(connection, conversation_id, visitor):
        raise no_conversation(conversation_id)


def no_conversation(conversation_id: str) -> NotFound:
    """The error for a conversation that does not exist, or that they may not know of."""
    return NotFound(
        f"There is no conversation {conversation_id[:60]!r}. `gofer conversations list` shows those there are."
    )
