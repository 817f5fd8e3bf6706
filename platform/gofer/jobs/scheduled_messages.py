"""Sayings: schedules whose work is to say a text to an agent in a conversation.

The text is somebody's words, so it is sealed with the conversation's key, and bound to who says it to whom: a row
that was changed by hand does not open.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select

from gofer.errors import GoferError, NotFound
from gofer.jobs.cron import Missed, add_schedule
from gofer.store import row_macs
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.tables import agents, bindings, connections, conversations, members, schedules
from gofer.vault.envelope import Vault

SAY = "say"
"""The kind of job in which a schedule says its text."""


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """What to say, to which agent, where, and on whose behalf."""

    agent: str
    conversation_id: str
    by: str
    """The member who wants it."""
    text: str


def add_scheduled_message(
    connection: Connection,
    vault: Vault,
    saying: ScheduledMessage,
    *,
    workspace_id: str,
    name: str,
    cron: str,
    timezone: str = "UTC",
    missed: Missed = "once",
) -> str:
    """Add such a schedule; raises NotFound for an agent or a conversation that is not there, and ConfigError."""
    return add_schedule(
        connection,
        workspace_id=workspace_id,
        name=name,
        cron=cron,
        kind=SAY,
        payload=sealed_message(connection, vault, saying, name=name),
        timezone=timezone,
        missed=missed,
    )


def sealed_message(
    connection: Connection, vault: Vault, saying: ScheduledMessage, *, name: str
) -> dict[str, Any]:
    """A saying as its schedule keeps it, and as each of its jobs is given it."""
    find_agent(connection, saying.agent)
    find_place(connection, saying.conversation_id)
    key = conversation_key(connection, vault, saying.conversation_id)
    whose = {"agent": saying.agent, "conversation_id": saying.conversation_id, "by": saying.by, "name": name}
    sealed = seal(key, saying.text, *_place(whose))
    return {**whose, "sealed": base64.b64encode(sealed).decode()}


def open_scheduled_message(
    connection: Connection, vault: Vault, payload: Mapping[str, Any]
) -> ScheduledMessage:
    """What `sealed_saying` kept; raises NotFound when the conversation is purged, and what the vault raises."""
    key = conversation_key(connection, vault, str(payload["conversation_id"]))
    text = unseal(key, base64.b64decode(payload["sealed"]), *_place(payload))
    return ScheduledMessage(
        str(payload["agent"]), str(payload["conversation_id"]), str(payload["by"]), str(text)
    )


def _place(payload: Mapping[str, Any]) -> tuple[str, ...]:
    return ("saying", *(str(payload[part]) for part in ("name", "agent", "conversation_id", "by")))


def told(connection: Connection, vault: Vault, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule for people: one that says something with its words instead of their sealed form."""
    empty = {"agent": "", "conversation_id": "", "say": ""}
    if schedule["kind"] != SAY:
        return {**schedule, **empty}
    try:
        saying = open_scheduled_message(connection, vault, schedule["payload"])
    except (GoferError, KeyError, ValueError):
        return {**schedule, **empty, "payload": {}}
    words = {"agent": saying.agent, "conversation_id": saying.conversation_id, "say": saying.text}
    return {**schedule, "payload": {"by": saying.by}, **words}


def find_agent(connection: Connection, name: str) -> str:
    """An agent's id by its name; raises NotFound."""
    found = connection.execute(select(agents.c.id).where(agents.c.name == name)).scalar()
    if found is None:
        raise NotFound(f"There is no agent {name[:40]!r}. `gofer agents list` shows those there are.")
    return str(found)


def find_place(connection: Connection, conversation_id: str) -> Any:
    """Where a conversation is held, by what, and of which kind; raises NotFound when it is held nowhere."""
    query = (
        select(
            *(bindings.c.ref, bindings.c.lasting, bindings.c.connection_id),
            *(connections.c.integration, conversations.c.kind),
        )
        .join(connections, connections.c.id == bindings.c.connection_id)
        .join(conversations, conversations.c.id == bindings.c.conversation_id)
        .where(bindings.c.conversation_id == conversation_id)
    )
    found = connection.execute(query.order_by(bindings.c.id).limit(1)).first()
    if found is None:
        raise NotFound(
            f"There is no conversation {conversation_id[:60]!r}. `gofer conversations list` shows those there are."
        )
    return found


def owner_name(connection: Connection, member_id: str) -> str | None:
    """What a member is called who is an owner now; None for everybody else."""
    query = select(members).where(members.c.id == member_id, members.c.role == "owner")
    row = connection.execute(query).one_or_none()
    return str(row.name) if row is not None and row_macs.fits(connection, members, row) else None


def remove_scheduled_messages(connection: Connection, conversation_id: str) -> int:
    """Remove the schedules that speak in a conversation; returns how many there were."""
    rows = connection.execute(select(schedules.c.id, schedules.c.payload).where(schedules.c.kind == SAY))
    ids = [row.id for row in rows if row.payload.get("conversation_id") == conversation_id]
    connection.execute(delete(schedules).where(schedules.c.id.in_(ids)))
    return len(ids)
