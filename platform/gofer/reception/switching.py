"""Choosing for one conversation who answers it, and with which model. An owner may; it holds until changed."""

from __future__ import annotations

import re
from collections.abc import Set

from sqlalchemy import Connection, select, update

from gofer.agent.models.catalogue import Catalogue
from gofer.errors import ConfigError
from gofer.store import events as log
from gofer.store.tables import agents, conversations

BACK = frozenset({"default", "auto", "-"})
"""Words that take a choice back."""
NOT_AN_OWNER = "Only an owner can change that."
_MODEL = re.compile(r"[a-z0-9_-]+/\S{1,200}")


def choose_agent(
    connection: Connection, conversation_id: str, workspace_id: str, name: str, by: str, there: Set[str]
) -> str:
    """Have one agent alone hear a conversation from now on; returns what to tell. The store also knows agents that
    are gone, so those that are there have to be named."""
    if name in BACK:
        _set(connection, conversation_id, workspace_id, by, agent_id=None)
        return "From now on whoever is meant to hears this conversation."
    known = dict(
        connection.execute(
            select(agents.c.name, agents.c.id).where(
                agents.c.workspace_id == workspace_id, agents.c.name.in_(there)
            )
        ).all()
    )
    if name not in known:
        return f"There is no agent {name[:40]!r}. There are: {', '.join(sorted(known))}."
    _set(connection, conversation_id, workspace_id, by, agent_id=known[name])
    return f"From now on {name} hears this conversation."


def choose_model(
    connection: Connection, catalogue: Catalogue, conversation_id: str, workspace_id: str, name: str, by: str
) -> str:
    """Have a conversation answered by one model from now on; returns what to tell."""
    if name in BACK:
        _set(connection, conversation_id, workspace_id, by, model="")
        return "From now on the agent's own model answers here."
    if not _MODEL.fullmatch(name):
        return "A model is named provider/model, such as anthropic/claude-sonnet-5; `/model default` takes it back."
    try:
        catalogue.model(name)
    except ConfigError as error:
        return f"That cannot be had: {error}"
    _set(connection, conversation_id, workspace_id, by, model=name)
    return f"From now on {name} answers here."


def _set(
    connection: Connection, conversation_id: str, workspace_id: str, by: str, **values: str | None
) -> None:
    connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(**values))
    log.record(
        connection,
        "conversation.changed",
        workspace_id,
        conversation_id=conversation_id,
        data={**values, "by": by},
    )
