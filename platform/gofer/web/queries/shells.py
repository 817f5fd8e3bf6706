"""Shells: the sandboxed sessions that are kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from gofer.errors import NotFound
from gofer.runs.shell_inspection import close_shell, describe_record
from gofer.store.tables import agents, conversations, shells
from gofer.web.auth import Visitor, require_readable
from gofer.web.queries import rows

_SHELLS = (
    select(*shells.c, func.coalesce(agents.c.name, "").label("agent"), conversations.c.title)
    .join(conversations, conversations.c.id == shells.c.conversation_id)
    .outerjoin(agents, agents.c.id == shells.c.agent_id)
)


def list_shells(connection: Connection, *, conversation: str = "", limit: int) -> list[dict[str, Any]]:
    """Every shell with what its record says, the last used first."""
    query = _SHELLS.order_by(shells.c.used_at.desc()).limit(limit)
    if conversation:
        query = query.where(shells.c.conversation_id == conversation)
    return [{**row, **describe_record(row.pop("record"))} for row in rows(connection, query)]


def find_shell(
    connection: Connection, conversation_id: str, agent: str, visitor: Visitor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A shell with what its record says, and the record; the agent by id or name. Raises NotFound, also where they may
    not read what is said: its files and commands say as much."""
    require_readable(connection, conversation_id, visitor)
    agent_id = _agent_id(connection, agent)
    query = _SHELLS.where(shells.c.conversation_id == conversation_id, shells.c.agent_id == agent_id)
    for row in rows(connection, query):
        record = row.pop("record")
        return {**row, **describe_record(record)}, record
    raise NotFound("There is no such shell; it may have been closed.")


def end_shell(connection: Connection, conversation_id: str, agent: str) -> str:
    """Close a shell and return its agent's id; the agent by id or name. Raises NotFound and Conflict."""
    agent_id = _agent_id(connection, agent)
    close_shell(connection, conversation_id=conversation_id, agent_id=agent_id)
    return agent_id


def _agent_id(connection: Connection, agent: str) -> str:
    """A value that is no agent's name is an id."""
    found = connection.execute(select(agents.c.id).where(agents.c.name == agent)).scalar()
    return str(found or agent)
