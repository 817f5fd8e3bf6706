"""The answer job: read what is unread, have it admitted, answer it.

Until an agent is configured with a model, the answer is the offline one: it says what it is and what it heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, select

from gofer.accounts import Accounts
from gofer.crash import crash_point
from gofer.errors import NotFound, Temporary
from gofer.intake.admit import Admitter, Read, unread
from gofer.jobs.outcome import Dead, Done, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.store.database import Database
from gofer.store.tables import Trust, bindings, messages
from gofer.vault.envelope import Vault

OFFLINE = "I am Gofer without a model: I can show that your message arrived, and no more. You said: {text}"

SAYINGS = {
    "cancelled": "Stopped, as asked.",
    "worker.lost": "I had to give this up: the process working on it stopped each time. Send it again to retry.",
    "internal": "Something went wrong on my side and trying again did not help. The operator can see the details.",
}
GIVEN_UP = "I had to give this up ({reason})."


class Answerer:
    """Answers conversations. `handle` is the handler of answer jobs."""

    def __init__(self, *, database: Database, vault: Vault, accounts: Accounts, admitter: Admitter) -> None:
        self._database = database
        self._vault = vault
        self._accounts = accounts
        self._admitter = admitter

    async def handle(self, run: Run) -> Outcome:
        """One run: everything unread gets one answer."""
        claim = run.claim
        crash_point("run.started")
        try:
            found = await self._database.read(
                partial(unread, vault=self._vault, claim=claim, after=claim.covers_from)
            )
            admitted = await self._admitter.admit(claim, found)
        except Temporary as error:
            if error.retry_after is not None:
                return Snooze(error.retry_after, error.reason)
            return Retry(error.reason)
        except NotFound:
            return Dead("purged")
        crash_point("run.admitted")
        if not admitted:
            return Done(included_to=claim.covers_to)
        included_to = admitted[-1].seq
        wanting = [read for read in admitted if read.message.addressed and read.trust is not Trust.STRANGER]
        if not wanting:
            return Done(included_to=included_to)
        drafts = await self._answer(claim, wanting)
        crash_point("run.answered")
        return Done(drafts=drafts, included_to=included_to)

    async def _answer(self, claim: Claim, wanting: Sequence[Read]) -> tuple[Draft, ...]:
        last = wanting[-1]
        text = OFFLINE.format(text="\n".join(read.message.text for read in wanting))
        assert last.connection_id is not None
        connected = await self._accounts.get(last.connection_id)
        binding = await self._database.read(
            partial(binding_of, claim=claim, connection_id=last.connection_id)
        )
        if binding is None:
            return ()
        parts = tuple(connected.integration.split(text))
        return (Draft(binding, parts, reply_to=last.message.external_id, facts=last.message.facts),)


def binding_of(connection: Connection, claim: Claim, connection_id: str | None) -> str | None:
    """Where a conversation meets a connection; the first place it meets any when none is named."""
    query = select(bindings.c.id).where(bindings.c.conversation_id == claim.conversation_id)
    if connection_id is not None:
        query = query.where(bindings.c.connection_id == connection_id)
    return connection.execute(query.order_by(bindings.c.id).limit(1)).scalar()


def apology(connection: Connection, claim: Claim, reason: str) -> tuple[Draft, ...]:
    """The honest sentence for a job that ends without an answer; none when nobody known is waiting for one."""
    if claim.participant_id is None or claim.conversation_id is None:
        return ()
    query = select(messages.c.external_id, messages.c.connection_id).where(
        messages.c.conversation_id == claim.conversation_id,
        messages.c.seq > claim.covers_from,
        messages.c.addressed,
        messages.c.trust.in_((Trust.OWNER, Trust.MEMBER)),
    )
    asked = connection.execute(query.order_by(messages.c.seq.desc()).limit(1)).first()
    if asked is None:
        return ()
    binding = binding_of(connection, claim, asked.connection_id)
    if binding is None:
        return ()
    saying = SAYINGS.get(reason, GIVEN_UP.format(reason=reason))
    return (Draft(binding, (saying,), kind="error", reply_to=asked.external_id),)
