"""Scheduled messages: a schedule writes a text into a conversation, where it arrives like anybody's message, with the
trust of the owner who made it.

The text is somebody's words, so it is sealed with the conversation's key, and bound to who says it to whom: a row
that was changed by hand does not open.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, select

from gofer.crash import crash_point
from gofer.errors import GoferError, NotFound
from gofer.intake.arrival import Arrival, Taken
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs.cron import Missed, add_schedule
from gofer.jobs.kinds import SAY
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.outcome import Dead, Done, Outcome
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.encryption import body_digest, conversation_key, seal, unseal
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    SCHEDULE,
    Trust,
    agents,
    bindings,
    connections,
    conversations,
    members,
)
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Redactor

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A text, the agent and the conversation it goes to, and the member on whose behalf."""

    agent: str
    conversation_id: str
    by: str
    """The member's id."""
    text: str


def add_scheduled_message(
    connection: Connection,
    vault: Vault,
    scheduled: ScheduledMessage,
    *,
    workspace_id: str,
    name: str,
    cron: str,
    timezone: str = "UTC",
    missed: Missed = "once",
) -> str:
    """Add a schedule that writes a message; raises NotFound for an unknown agent or conversation, and ConfigError."""
    return add_schedule(
        connection,
        workspace_id=workspace_id,
        name=name,
        cron=cron,
        kind=SAY,
        payload=sealed_message(connection, vault, scheduled, name=name),
        timezone=timezone,
        missed=missed,
    )


def sealed_message(
    connection: Connection, vault: Vault, scheduled: ScheduledMessage, *, name: str
) -> dict[str, Any]:
    """A scheduled message as the payload of its schedule and of each of its jobs."""
    find_agent(connection, scheduled.agent)
    find_place(connection, scheduled.conversation_id)
    key = conversation_key(connection, vault, scheduled.conversation_id)
    whose = {
        "agent": scheduled.agent,
        "conversation_id": scheduled.conversation_id,
        "by": scheduled.by,
        "name": name,
    }
    sealed = seal(key, scheduled.text, *_place(whose))
    return {**whose, "sealed": base64.b64encode(sealed).decode()}


def open_scheduled_message(
    connection: Connection, vault: Vault, payload: Mapping[str, Any]
) -> ScheduledMessage:
    """Open what `sealed_message` made; raises NotFound when the conversation is purged, and what the vault raises."""
    key = conversation_key(connection, vault, str(payload["conversation_id"]))
    text = unseal(key, base64.b64decode(payload["sealed"]), *_place(payload))
    return ScheduledMessage(
        str(payload["agent"]), str(payload["conversation_id"]), str(payload["by"]), str(text)
    )


def _place(payload: Mapping[str, Any]) -> tuple[str, ...]:
    return ("saying", *(str(payload[part]) for part in ("name", "agent", "conversation_id", "by")))


def show_schedule(connection: Connection, vault: Vault, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule's row for people: with the text of its message instead of the sealed form."""
    empty = {"agent": "", "conversation_id": "", "say": ""}
    if schedule["kind"] != SAY:
        return {**schedule, **empty}
    try:
        scheduled = open_scheduled_message(connection, vault, schedule["payload"])
    except (GoferError, KeyError, ValueError):
        return {**schedule, **empty, "payload": {}}
    words = {"agent": scheduled.agent, "conversation_id": scheduled.conversation_id, "say": scheduled.text}
    return {**schedule, "payload": {"by": scheduled.by}, **words}


def find_agent(connection: Connection, name: str) -> str:
    """An agent's id by its name; raises NotFound."""
    found = connection.execute(select(agents.c.id).where(agents.c.name == name)).scalar()
    if found is None:
        raise NotFound(f"There is no agent {name[:40]!r}. `gofer agents list` shows those there are.")
    return str(found)


def find_place(connection: Connection, conversation_id: str) -> Any:
    """The first place of a conversation, its integration and its kind; raises NotFound when it has none."""
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
    """The name of a member who is an owner now; None for everybody else."""
    query = select(members).where(members.c.id == member_id, members.c.role == "owner")
    row = connection.execute(query).one_or_none()
    return str(row.name) if row is not None and row_macs.fits(connection, members, row) else None


class _NoLongerOwner(Exception):
    """Whoever made the schedule is no owner any more."""


@dataclass(eq=False, repr=False, kw_only=True)
class ScheduledSender:
    """Handles the jobs of scheduled messages."""

    database: Database
    vault: Vault
    redactor: Redactor
    signals: Signals

    async def handle(self, run: Run) -> Outcome:
        """Write the message once. A try after a crash finds the delivery of the first try."""
        claim = run.claim
        try:
            taken = await self.database.write(self._take_in, claim=claim)
        except NotFound as error:
            return _given_up(claim, "schedule.gone", error)
        except _NoLongerOwner as error:
            return _given_up(claim, "schedule.not_owner", error)
        except (Tampered, KeyError, ValueError) as error:
            return _given_up(claim, "schedule.unreadable", error)
        crash_point("schedule.said")
        if taken.woke:
            self.signals.wake(JOBS)
        self.signals.wake(EVENTS)
        return Done()

    def _take_in(self, connection: Connection, claim: Claim) -> Taken:
        # Lock first: a place that is released meanwhile must not begin a conversation of its own.
        lock_conversation(connection, str(claim.payload["conversation_id"]))
        scheduled = open_scheduled_message(connection, self.vault, claim.payload)
        find_agent(connection, scheduled.agent)
        owner = owner_name(connection, scheduled.by)
        if owner is None:
            raise _NoLongerOwner
        place = find_place(connection, scheduled.conversation_id)
        return take_in(connection, self.vault, self._arrival(claim, scheduled, place, owner))

    def _arrival(self, claim: Claim, scheduled: ScheduledMessage, place: Any, owner: str) -> Arrival:
        text, schedule = self.redactor.redact(scheduled.text), claim.payload["name"]
        message = Incoming(
            conversation=place.ref,
            author=Author(claim.lane, f"{owner} (schedule {schedule})"),
            text=text,
            addressed=True,
            kind=place.kind,
            event=SCHEDULE,
            trigger=SCHEDULE,
            agent=scheduled.agent,
            # No service knows it; an integration tells the work on one message from that on another by it.
            external_id=f"schedule-{claim.id}",
            # Its name may mean another place by the time that something is said there.
            stable_id=place.lasting or "",
        )
        body = text.encode("utf-8", "replace")
        return Arrival(
            workspace_id=claim.workspace_id,
            connection_id=place.connection_id,
            integration=place.integration,
            source="schedule",
            # The job is made once for each due time, so its number makes what it says happen once.
            parsed=Parsed(f"{claim.lane}:{claim.id}:{claim.payload['due_at']}", SCHEDULE, message),
            body=body,
            body_hash=body_digest(self.vault, body),
            trust=Trust.OWNER,
        )


def _given_up(claim: Claim, reason: str, error: Exception) -> Dead:
    log.warning("schedule.not_said", job=claim.id, reason=reason, error=str(error))
    return Dead(reason)
