"""Sending: a deliver job works through the ledger of one binding, in order, until nothing is left.

Place, store the id, then complete: each step may be repeated after a crash. A part that was begun before is first
looked for, once whatever was on its way must have arrived; a service that cannot be searched gets only opening lines
before its id is stored, so that at worst a crash leaves an orphan opening, never a second answer.

A job that had to give up a part is dead, with the reason, and whoever waits for the reply and an owner are told
elsewhere. Redriving the job sends what it gave up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, select

from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.crash import crash_point
from gofer.errors import Fenced, Gone, NotFound, Permanent, Refused, StoreError, Temporary
from gofer.identity import linked_identities, owners_of
from gofer.integration import Integration, Outgoing
from gofer.jobs.ensure import CONFIRMING
from gofer.jobs.kinds import ANSWER, DELIVER
from gofer.jobs.outcome import ENDS_QUESTION, Dead, Done, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.outbox import ledger
from gofer.outbox.ledger import INTERRUPTED, Before, Part
from gofer.outbox.progress import RunSummary, end_questions
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.messages import binding_at
from gofer.store.row_macs import RowRefused
from gofer.store.tables import ReplyState, Trust, conversations, jobs, messages, replies
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()

MAX_PLACINGS = 3
"""How often a part is placed again when somebody deletes it before it is complete."""
BETWEEN_TRIES = 0.5
"""Seconds between two tries to write to a store that is away."""


@dataclass(eq=False, kw_only=True)
class Outbox:
    """Sends replies. `handle` is the handler of deliver jobs."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    redactor: Redactor
    late_write_within: float
    """Seconds after its lease in which a silent worker's last request may still arrive outside."""
    public_url: str = ""

    def __post_init__(self) -> None:
        self._telling = RunSummary(self.vault, self.redactor, self.public_url)
        self._notices = FailureNotices(self.database, self.accounts, self.public_url)

    async def handle(self, run: Run) -> Outcome:
        """Send everything the binding's ledger holds."""
        binding_id = str(run.claim.payload["binding_id"])
        before = await self.database.read(ledger.earlier_tries, claim=run.claim)
        burdened, progressed = run.claim.attempts > 1, False
        while True:
            part = await self.database.read(ledger.next_part, vault=self.vault, binding_id=binding_id)
            if part is None:
                return await self._over(run)
            if part.state is ReplyState.SENT and part.confirm_in is not None and part.confirm_in > 0:
                return Snooze(part.confirm_in, CONFIRMING)
            if burdened and progressed and part.state is not ReplyState.SENT:
                # It gets a job and tries of its own, not what is left of those that others have cost.
                return await self._over(run)
            problem = await self._send(run, part, before)
            if problem is not None:
                return problem
            progressed = True

    async def _send(self, run: Run, part: Part, before: Before) -> Outcome | None:
        """Send one part; None when it is sent or has failed, else the outcome with which the job comes back."""
        if part.unreadable:
            await self._give_up(run, part, part.unreadable)
            return None
        try:
            connected = await self.accounts.get(part.connection_id)
            if part.state is ReplyState.SENT:
                await self._repeat_last_edit(run, part, connected)
            else:
                await self._place_and_complete(run, part, connected, before)
        except Temporary as error:
            log.info("reply.delayed", reply=part.id, reason=error.reason, retry_after=error.retry_after)
            if error.retry_after is None:
                return await self._later(run, part, error.reason, error)
            if error.give_up_after is None or part.age < error.give_up_after:
                return Snooze(error.retry_after, error.reason)
            await self._give_up(run, part, f"{error.reason}: {error}")
            return None
        except (Permanent, NotFound, Refused) as error:
            await self._give_up(run, part, f"{getattr(error, 'reason', error.code)}: {error}")
        except (Fenced, StoreError, RowRefused):
            raise
        except Exception as error:  # noqa: BLE001
            # A line that broke, or an integration's oversight: worth another try, and seen if none helps.
            log.warning("reply.interrupted", reply=part.id, error=type(error).__name__)
            return await self._later(run, part, INTERRUPTED, error)
        return None

    async def _later(self, run: Run, part: Part, reason: str, error: Exception) -> Outcome:
        """Try again later. After the last try the part has failed, and the parts behind it get tries of their own."""
        if run.claim.attempts < run.claim.max_attempts:
            return Retry(reason)
        await self._give_up(run, part, f"{reason}: {error}")
        return await self._over(run)

    async def _over(self, run: Run) -> Outcome:
        """The job's end: dead when it had to give up a part, in this try or an earlier one."""
        failed = await self.database.read(ledger.failures, claim=run.claim)
        if not failed:
            return Done()
        reason, _, words = str(failed[0].reason).partition(": ")
        drafts = await self._notices.about(run.claim, failed[0])
        return Dead(reason, drafts, detail=words)

    async def _place_and_complete(
        self, run: Run, part: Part, connected: LoadedConnection, before: Before
    ) -> None:
        outgoing = await self._outgoing(part, connected)
        external_id = part.external_id
        if part.state is ReplyState.PLANNED:
            self._too_soon(part, connected, before)
            external_id = await self._place(run, part, outgoing, connected, look=part.tries > 0)
        await self._complete(run, part, outgoing, external_id, connected)
        crash_point("outbox.completed_outside")
        confirm_after = self.late_write_within if before.taken_over else None
        await self.database.write(ledger.sent, claim=run.claim, part=part, confirm_after=confirm_after)
        crash_point("outbox.sent")
        if (
            part.kind == "error" or ENDS_QUESTION in part.facts
        ):  # what the job asked before it was stopped or told
            await end_questions(self.database, self.vault, self.accounts, part.job_id)

    async def _place(
        self, run: Run, part: Part, outgoing: Outgoing, connected: LoadedConnection, *, look: bool
    ) -> str:
        integration, account = connected.integration, connected.account
        await self.database.write(ledger.begin, claim=run.claim, part=part)
        crash_point("outbox.begun")
        found = await integration.find(outgoing, account) if look else None
        run.lease.check()
        external_id = found or await integration.place(outgoing, account)
        crash_point("outbox.placed_outside")
        await self._note(run, partial(ledger.placed, claim=run.claim, part=part, external_id=external_id))
        crash_point("outbox.placed")
        return external_id

    async def _complete(
        self, run: Run, part: Part, outgoing: Outgoing, external_id: str, connected: LoadedConnection
    ) -> None:
        """Bring the part to its full text; what somebody deleted meanwhile is placed again."""
        for left in reversed(range(MAX_PLACINGS)):
            try:
                await connected.integration.complete(outgoing, external_id, connected.account)
            except Gone as error:
                if not left:
                    raise
                log.info("reply.vanished", reply=part.id, error=str(error))
            else:
                return
            await self.database.write(ledger.vanished, claim=run.claim, part=part)
            external_id = await self._place(run, part, outgoing, connected, look=False)

    async def _note(self, run: Run, verb: Callable[[Connection], None]) -> None:
        """Store a fact that the service tells only once. While the store is away, try again for as long as the job
        is surely ours."""
        while True:
            try:
                return await self.database.write(verb)
            except StoreError as error:
                log.warning("reply.not_noted", error=str(error))
            await asyncio.sleep(BETWEEN_TRIES)
            run.lease.check()

    def _too_soon(self, part: Part, connected: LoadedConnection, before: Before) -> None:
        """Raises Temporary while a part that was begun may still arrive: looking for it now would not find it."""
        can_be_searched = type(connected.integration).find is not Integration.find
        if not part.tries or not can_be_searched or before.unsure_for is None:
            return
        left = self.late_write_within - before.unsure_for
        if left > 0:
            raise Temporary("It may still arrive.", reason="unsure", retry_after=left)

    async def _repeat_last_edit(self, run: Run, part: Part, connected: LoadedConnection) -> None:
        try:
            await connected.integration.complete(
                await self._outgoing(part, connected), part.external_id, connected.account
            )
        except Permanent as error:
            # It was complete before; somebody may have deleted it since.
            log.info("reply.not_confirmed", reply=part.id, error=str(error))
        await self.database.write(ledger.confirmed, claim=run.claim, part=part)

    async def _give_up(self, run: Run, part: Part, reason: str) -> None:
        # An error's text may hold the address it was about, and with some services that holds the token.
        reason = self.redactor.redact(reason)
        log.error("reply.failed", reply=part.id, reason=reason)
        if part.state is ReplyState.SENT:
            await self.database.write(ledger.confirmed, claim=run.claim, part=part)
        else:
            await self.database.write(ledger.failed, claim=run.claim, part=part, reason=reason)

    async def _outgoing(self, part: Part, connected: LoadedConnection) -> Outgoing:
        work = None
        if connected.integration.shows_run_summary and part.kind != "note":
            work = await self.database.read(self._telling.progress, job_id=part.job_id)
        return Outgoing(
            id=part.key,
            conversation=part.ref,
            text=self.redactor.redact(part.text),
            part=part.part,
            parts=part.parts,
            kind=part.kind,  # type: ignore[arg-type]
            reply_to=part.reply_to,
            facts=part.facts,
            stable_id=part.lasting,
            question=part.question,
            choices=tuple(self.redactor.redact(choice) for choice in part.choices),
            work=work,
            stopped_by=part.stopped_by,
            narrowed=part.narrowed,
        )


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
    accounts: LoadedConnections
    public_url: str

    async def about(self, claim: Claim, failed: Any) -> tuple[Draft, ...]:
        """Notices of a deliver job's first failure; none where nobody waits, or all were told a while ago."""
        if failed.planned_by != ANSWER:
            return ()  # nobody waits for a notice or a greeting, and a notice about a notice would go on for ever
        connected = await self.accounts.all()
        return await self.database.read(self._about, claim=claim, failed=failed, connected=connected)

    def _about(
        self, connection: Connection, claim: Claim, failed: Any, connected: list[LoadedConnection]
    ) -> tuple[Draft, ...]:
        if _was_notified(connection, claim):
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


def _was_notified(connection: Connection, claim: Claim) -> bool:
    """Whether a notice about a failure in the same place was sent within the last day."""
    query = (
        select(replies.c.id)
        .join(jobs, jobs.c.id == replies.c.job_id)
        .where(replies.c.conversation_id == claim.conversation_id, replies.c.kind == "note")
        .where(replies.c.created_at > now() - TOLD_EVERY, jobs.c.kind == DELIVER)
    )
    return connection.execute(query.limit(1)).first() is not None


def _asker(connection: Connection, claim: Claim, failed: Any, connected: list[LoadedConnection]) -> People:
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
    others = linked_identities(
        connection, workspace_id=claim.workspace_id, integration=name, subject=str(asked.author)
    )
    return [(name, str(asked.author)), *others.items()]


def _owners(connection: Connection, claim: Claim, connected: list[LoadedConnection]) -> People:
    return [
        (name, subject)
        for name in dict.fromkeys(one.integration.name for one in connected)
        for subject in owners_of(connection, workspace_id=claim.workspace_id, integration=name)
    ]


def _private_bindings(
    connection: Connection, claim: Claim, connected: list[LoadedConnection], people: People
) -> Iterator[str]:
    """Where these people can be reached alone, and not where the reply could not be sent."""
    failing = str(claim.payload["binding_id"])
    for name, subject in people:
        for one in connected:
            place = one.integration.private_place(subject) if one.integration.name == name else None
            if place is None:
                continue
            found = binding_at(connection, one.account.id, place)
            if found is not None and found.id != failing:
                yield str(found.id)
