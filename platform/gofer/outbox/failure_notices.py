"""Telling people that a reply could not be sent: whoever waits for it, and an owner, each where they can be reached
alone. What cannot be told to anybody is still seen: the deliver job is dead, with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from gofer.accounts import Accounts, Connected
from gofer.jobs.kinds import ANSWER, DELIVER
from gofer.jobs.outcome import Draft
from gofer.jobs.queue import Claim
from gofer.people import elsewhere, owners_of
from gofer.store.clock import now
from gofer.store.database import Database
from gofer.store.tables import Trust, bindings, conversations, jobs, messages, replies

NOTICE = (
    "A reply of mine in {place} could not be sent: {reason}. {where}To try again: gofer jobs redrive {job}"
)
TOLD_EVERY = 86400.0
"""Seconds between two notices about the same place."""
_NOT_IN_TITLES = re.compile(r"[^\w /#+'()-]+")
_NOT_IN_REASONS = re.compile(r"[^\w .,:;/#+'()-]+")


@dataclass(frozen=True, slots=True)
class FailureNotices:
    """Finds out whom to tell about a reply that failed for good."""

    database: Database
    accounts: Accounts
    public_url: str

    async def about(self, claim: Claim, failed: Any) -> tuple[Draft, ...]:
        """Notices of a deliver job's first failure; none where nobody waits, or all were told a while ago."""
        if failed.planned_by != ANSWER:
            return ()  # nobody waits for a notice or a greeting, and a notice about a notice would go on for ever
        connected = await self.accounts.all()
        return await self.database.read(partial(self._about, claim=claim, failed=failed, connected=connected))

    def _about(
        self, connection: Connection, claim: Claim, failed: Any, connected: list[Connected]
    ) -> tuple[Draft, ...]:
        if _told(connection, claim):
            return ()
        text = self._text(connection, claim, failed)
        places = [
            next(_private_bindings(connection, claim, connected, people), None)
            for people in (
                _asker(connection, claim, failed, connected),
                _owners(connection, claim, connected),
            )
        ]
        return tuple(Draft(binding, (text,), kind="note") for binding in dict.fromkeys(filter(None, places)))

    def _text(self, connection: Connection, claim: Claim, failed: Any) -> str:
        title = connection.execute(
            select(conversations.c.title).where(conversations.c.id == claim.conversation_id)
        ).scalar()
        # The title is somebody else's words: nothing in it may become a link, a mention or a mark.
        plain = _NOT_IN_TITLES.sub(" ", str(title or "")).strip()[:80]
        reason = _NOT_IN_REASONS.sub(" ", str(failed.reason)).strip().rstrip(".")[:300]
        base = self.public_url.rstrip("/")
        return NOTICE.format(
            place=f"“{plain}”" if plain else "a conversation",
            reason=reason,
            where=f"It is kept here: {base}/runs/{failed.job_id} . " if base else "",
            job=claim.id,
        )


People = list[tuple[str, str]]
"""Somebody's ids: the integration's name, and the id there."""


def _told(connection: Connection, claim: Claim) -> bool:
    """Whether somebody was told of a failure in the same place within the last day."""
    query = (
        select(replies.c.id)
        .join(jobs, jobs.c.id == replies.c.job_id)
        .where(replies.c.conversation_id == claim.conversation_id, replies.c.kind == "note")
        .where(replies.c.created_at > now() - TOLD_EVERY, jobs.c.kind == DELIVER)
    )
    return connection.execute(query.limit(1)).first() is not None


def _asker(connection: Connection, claim: Claim, failed: Any, connected: list[Connected]) -> People:
    """Whoever's message the reply answers, here and on other services."""
    query = (
        select(messages.c.author, messages.c.connection_id)
        .join(jobs, jobs.c.conversation_id == messages.c.conversation_id)
        .where(jobs.c.id == failed.job_id, messages.c.seq > jobs.c.covers_from, messages.c.addressed)
        .where(messages.c.trust.in_((Trust.OWNER, Trust.MEMBER)))
        .order_by(messages.c.seq)
        .limit(1)
    )
    asked = connection.execute(query).first()
    names = {one.account.id: one.integration.name for one in connected}
    if asked is None or asked.connection_id not in names:
        return []
    name = names[asked.connection_id]
    others = elsewhere(
        connection, workspace_id=claim.workspace_id, integration=name, subject=str(asked.author)
    )
    return [(name, str(asked.author)), *others.items()]


def _owners(connection: Connection, claim: Claim, connected: list[Connected]) -> People:
    return [
        (name, subject)
        for name in dict.fromkeys(one.integration.name for one in connected)
        for subject in owners_of(connection, workspace_id=claim.workspace_id, integration=name)
    ]


def _private_bindings(
    connection: Connection, claim: Claim, connected: list[Connected], people: People
) -> Iterator[str]:
    """Where these people can be reached alone, and not where the reply could not be sent."""
    failing = str(claim.payload["binding_id"])
    for name, subject in people:
        for one in connected:
            place = one.integration.private_place(subject) if one.integration.name == name else None
            if place is None:
                continue
            query = select(bindings.c.id).where(
                bindings.c.connection_id == one.account.id, bindings.c.ref == place
            )
            found = connection.execute(query).scalar()
            if found is not None and found != failing:
                yield str(found)
