"""Admission: what a message's integration finds out about it before an agent may read it. Asked once, then stored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, literal_column, select, update

from gofer.connections.context import LoadedConnections
from gofer.errors import NotFound, Permanent
from gofer.identity import known_principal
from gofer.intake.unknown_senders import decline
from gofer.integration import Admission, Attachment, File, Role, Unread
from gofer.jobs.fence import hold
from gofer.jobs.queue import Claim
from gofer.store import events as log
from gofer.store import fast_sql
from gofer.store.blobs import put_blob
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key
from gofer.store.messages import StoredMessage, open_stored, seal_message
from gofer.store.tables import ASIDE, Trust, conversations, jobs, messages
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

Noticed = Callable[[Claim, StoredMessage, bool], None]
"""Called for each message a run reads; the flag means "for the first time". Contract: neither blocks nor raises."""
Charge = Callable[[Connection, Claim, str, float], None]
"""Counts what a job has paid for something, in dollars."""
BLOB_REF = "blob:"
"""How an attachment's reference begins once its bytes are ours."""


def unread(connection: Connection, vault: Vault, claim: Claim, after: int) -> list[StoredMessage]:
    """The messages a job covers, after one it has seen. Purged ones are gone."""
    asked = {"conversation": claim.conversation_id, "after": after, "job": claim.id}
    rows = [row for row in fast_sql.fetch(connection, _UNREAD, asked) if row.event not in ASIDE]
    return [_open(connection, vault, row) for row in rows if row.sealed is not None]


def covered(job_id: Any) -> ColumnElement[bool]:
    """Condition: the job covers the message. Messages that came after somebody stopped the job are not covered."""
    # As it is now, not as it was when the job was claimed: a run that is about to stop must take in nothing more.
    to = select(jobs.c.covers_to).where(jobs.c.id == job_id).scalar_subquery()
    return messages.c.seq <= func.coalesce(to, messages.c.seq)


_UNREAD = (
    select(messages)
    .where(messages.c.conversation_id == bindparam("conversation"), messages.c.seq > bindparam("after"))
    .where(covered(bindparam("job")))
    .order_by(messages.c.seq)
)


def read_one(connection: Connection, vault: Vault, conversation_id: str, seq: int) -> StoredMessage | None:
    """One message by its number; None when it was purged."""
    row = fast_sql.first(connection, _ONE, {"conversation": conversation_id, "seq": seq})
    return None if row is None or row.sealed is None else _open(connection, vault, row)


_ONE = select(messages).where(
    messages.c.conversation_id == bindparam("conversation"), messages.c.seq == bindparam("seq")
)


def _open(connection: Connection, vault: Vault, row: Any) -> StoredMessage:
    return open_stored(conversation_key(connection, vault, row.conversation_id), row)


@dataclass(eq=False, kw_only=True)
class Admitter:
    """Admits messages on behalf of a run."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    redactor: Redactor
    strangers: StrangerLimit = field(default_factory=lambda: StrangerLimit())
    noticed: Noticed = lambda claim, read, fresh: None
    charge: Charge = lambda connection, claim, key, dollars: None

    async def admit(self, claim: Claim, found: Sequence[StoredMessage]) -> list[StoredMessage]:
        """The same messages, each with its author's trust; raises Temporary when a service cannot say now."""
        admitted = []
        for read in found:
            fresh = read.trust is Trust.UNKNOWN
            known = await self._admit(claim, read) if fresh else read
            self.noticed(claim, known, fresh)
            admitted.append(known)
        return admitted

    async def _admit(self, claim: Claim, read: StoredMessage) -> StoredMessage:
        # Asked again when an edit came between the question and its answer.
        while read.trust is Trust.UNKNOWN:
            admission = await self._ask(claim, read)
            if admission.text is not None:
                admission = dataclasses.replace(admission, text=self.redactor.redact(admission.text))
            read = await self.database.write(
                _store, vault=self.vault, claim=claim, read=read, admission=admission, charge=self.charge
            )
        return read

    async def _ask(self, claim: Claim, read: StoredMessage) -> Admission:
        if read.connection_id is None:
            return Admission("stranger", note="no connection")
        try:
            connected = await self.accounts.get(read.connection_id)
            role = await self.database.read(
                known_role,
                workspace_id=claim.workspace_id,
                integration=connected.integration.name,
                subject=read.message.author.id,
            )
            author = read.message.author.id
            if role is None and not self.strangers.may_look_up(read.connection_id, author):
                return Admission("stranger", note="found to be a stranger often enough within the hour")
            admission = await connected.integration.admit(Unread(read.message, role), connected.account)
            if admission.trust == "stranger":
                self.strangers.was_stranger(read.connection_id, author)
            return admission
        except (Permanent, NotFound) as error:
            # Who cannot be looked up is nobody we know.
            return Admission("stranger", note=str(error))


def known_role(connection: Connection, *, workspace_id: str, integration: str, subject: str) -> Role | None:
    """The role of whoever is paired with an identity, if anybody is."""
    found = known_principal(connection, workspace_id, integration, subject)
    return found.role if found is not None and found.role in ("owner", "member") else None


def _store(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    read: StoredMessage,
    admission: Admission,
    charge: Charge,
) -> StoredMessage:
    """Store an admission once: an earlier one stands, and a message edited meanwhile is not admitted."""
    conversation_id = claim.conversation_id
    assert conversation_id is not None
    if admission.cost:
        charge(connection, claim, f"admit:{read.seq}", admission.cost)
    # The lock also keeps a replacing edit from falling between what was asked about and what is kept.
    connection.execute(
        select(conversations.c.id).where(conversations.c.id == conversation_id).with_for_update()
    )
    hold(connection, claim)
    row = connection.execute(
        select(messages).where(messages.c.conversation_id == conversation_id, messages.c.seq == read.seq)
    ).one()
    current = _open(connection, vault, row)
    if current.trust is not Trust.UNKNOWN or current.message != read.message:
        return current
    key = conversation_key(connection, vault, conversation_id)
    kept = [_keep_file(connection, vault, conversation_id, file) for file in admission.files]
    found = admission.message or current.message
    message = dataclasses.replace(
        found,
        text=found.text if admission.text is None else admission.text,
        attachments=tuple(kept) or found.attachments,
    )
    trust = Trust(admission.trust)
    sealed = seal_message(key, conversation_id, read.seq, message, trust, came_by=read.connection_id)
    # What may be large is given apart: SQLAlchemy remembers the values that are part of a statement.
    connection.execute(
        update(messages)
        .where(messages.c.conversation_id == conversation_id, messages.c.seq == read.seq)
        .values(trust=trust, admitted_at=now(), author=message.author.id, addressed=message.addressed),
        {"sealed": sealed},
    )
    log.append(
        connection, job_id=claim.id, owner=claim.owner, fence=claim.fence, kind="message.admitted",
        data={"seq": read.seq, "trust": trust, "note": admission.note},
    )  # fmt: skip
    if trust is Trust.STRANGER and admission.turn_away:
        decline(connection, vault, claim, read, admission.turn_away)
    return StoredMessage(read.seq, message, trust, read.connection_id)


def _keep_file(connection: Connection, vault: Vault, conversation_id: str, file: File) -> Attachment:
    digest = put_blob(connection, vault, conversation_id, file.content, file.media_type)
    return Attachment(BLOB_REF + digest, file.name, file.media_type, len(file.content))


HOUR = 3600.0
MAX_PER_HOUR = 30
TRUSTED_FOR = 1.0
"""Seconds for which a busy author is remembered to be no stranger."""
MAX_AUTHORS = 10_000

Author = tuple[str, str]
"""A connection's id, and the service's id of the author."""


class StrangerLimit:
    """Limits what one unknown author may cause within an hour: messages that make jobs, and look-ups at their service.

    A service vouches for who wrote, not that we know them. Without a bound a stranger could have a job made for each
    of a thousand comments, and spend what the service lets us ask. The counts are of one process, by connection and
    author, and forgotten at its end.
    """

    def __init__(self, max_per_hour: int = MAX_PER_HOUR) -> None:
        self.max_per_hour = max_per_hour
        self._messages = _Hour()
        self._lookups = _Hour()
        self._trusted_until: dict[Author, float] = {}

    async def refuses(
        self, database: Database, *, workspace_id: str, integration: str, connection_id: str, author: str
    ) -> bool:
        """Count a message; True when it is a stranger's and one too many."""
        key = (connection_id, author)
        if self._messages.add(key) <= self.max_per_hour:
            return False
        if self._trusted_until.get(key, 0) > time.monotonic():
            return False
        # Looked at each time: whoever is let in this moment is heard from the next message on.
        stranger = await database.read(
            _is_stranger,
            workspace_id=workspace_id,
            integration=integration,
            connection_id=connection_id,
            author=author,
        )
        if not stranger:
            if len(self._trusted_until) >= MAX_AUTHORS:
                self._trusted_until.clear()
            self._trusted_until[key] = time.monotonic() + TRUSTED_FOR
        return stranger

    def may_look_up(self, connection_id: str, author: str) -> bool:
        """Whether a repeated stranger may be looked up once more."""
        return self._lookups.count((connection_id, author)) < self.max_per_hour

    def was_stranger(self, connection_id: str, author: str) -> None:
        """Count a look-up that found a stranger."""
        self._lookups.add((connection_id, author))


class _Hour:
    """Counts within the hour; all are forgotten together when it is over, or when there are too many to remember."""

    def __init__(self) -> None:
        self._counts: dict[Author, int] = {}
        self._over_at = 0.0

    def add(self, key: Author) -> int:
        self._renew()
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def count(self, key: Author) -> int:
        self._renew()
        return self._counts.get(key, 0)

    def _renew(self) -> None:
        if time.monotonic() >= self._over_at or len(self._counts) > MAX_AUTHORS:
            self._counts.clear()
            self._over_at = time.monotonic() + HOUR


def _is_stranger(
    connection: Connection, *, workspace_id: str, integration: str, connection_id: str, author: str
) -> bool:
    """Whether an author is a stranger: nobody is paired with them, and a look-up within the hour found a stranger. An
    author who was not looked up yet is none, because what many write at once, or wrote while Gofer was away, must not
    be lost."""
    person = known_principal(connection, workspace_id, integration, author)
    if person is not None and person.role in ("owner", "member"):
        return False
    found = (
        select(messages.c.seq)
        .where(messages.c.connection_id == connection_id, messages.c.author == author)
        .where(messages.c.trust == literal_column(f"'{Trust.STRANGER}'"))  # as the partial index has it
        .where(messages.c.admitted_at > now() - HOUR)
        .limit(1)
    )
    return connection.execute(found).first() is not None
