"""A schedule speaks: its text arrives as a message, like anybody's, with the trust of the owner who made it."""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from gofer.crash import crash_point
from gofer.errors import NotFound
from gofer.intake.arrival import Arrival, Taken
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.outcome import Dead, Done, Outcome
from gofer.jobs.queue import Claim
from gofer.jobs.scheduled_messages import (
    ScheduledMessage,
    find_agent,
    find_place,
    open_scheduled_message,
    owner_name,
)
from gofer.jobs.worker import Run
from gofer.store.database import Database
from gofer.store.digests import body_digest
from gofer.store.locks import lock_conversation
from gofer.store.tables import SCHEDULE, Trust
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Redactor

log = structlog.get_logger()


class _NoLongerOwner(Exception):
    """Whoever made the schedule is no owner any more."""


class ScheduledSender:
    """Handles the jobs of schedules that say something."""

    def __init__(self, *, database: Database, vault: Vault, redactor: Redactor, signals: Signals) -> None:
        self._database = database
        self._vault = vault
        self._redactor = redactor
        self._signals = signals

    async def handle(self, run: Run) -> Outcome:
        """Say it, once: a try that died after saying it finds its delivery there."""
        claim = run.claim
        try:
            taken = await self._database.write(partial(self._say, claim=claim))
        except NotFound as error:
            return _given_up(claim, "schedule.gone", error)
        except _NoLongerOwner as error:
            return _given_up(claim, "schedule.not_owner", error)
        except (Tampered, KeyError, ValueError) as error:
            return _given_up(claim, "schedule.unreadable", error)
        crash_point("schedule.said")
        if taken.woke:
            self._signals.wake(JOBS)
        self._signals.wake(EVENTS)
        return Done()

    def _say(self, connection: Connection, claim: Claim) -> Taken:
        # First the lock: a place that is let go meanwhile must not begin a conversation of its own.
        lock_conversation(connection, str(claim.payload["conversation_id"]))
        saying = open_scheduled_message(connection, self._vault, claim.payload)
        find_agent(connection, saying.agent)
        owner = owner_name(connection, saying.by)
        if owner is None:
            raise _NoLongerOwner
        place = find_place(connection, saying.conversation_id)
        return take_in(connection, self._vault, self._arrival(claim, saying, place, owner))

    def _arrival(self, claim: Claim, saying: ScheduledMessage, place: Any, owner: str) -> Arrival:
        text, schedule = self._redactor.redact(saying.text), claim.payload["name"]
        message = Incoming(
            conversation=place.ref,
            author=Author(claim.lane, f"{owner} (schedule {schedule})"),
            text=text,
            addressed=True,
            kind=place.kind,
            event=SCHEDULE,
            trigger=SCHEDULE,
            agent=saying.agent,
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
            body_hash=body_digest(self._vault, body),
            trust=Trust.OWNER,
        )


def _given_up(claim: Claim, reason: str, error: Exception) -> Dead:
    log.warning("schedule.not_said", job=claim.id, reason=reason, error=str(error))
    return Dead(reason)
