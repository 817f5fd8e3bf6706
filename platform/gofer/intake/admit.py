"""Admission: what a message's integration finds out about it before an agent may read it. Asked once, then stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from gofer.connections.context import LoadedConnections
from gofer.errors import NotFound, Permanent
from gofer.identity import known_principal
from gofer.intake.stranger_limit import StrangerLimit
from gofer.intake.unknown_senders import decline
from gofer.integration import Admission, Attachment, File, Role, Unread
from gofer.jobs.fence import hold
from gofer.jobs.queue import Claim
from gofer.store import events as log
from gofer.store.blobs import put_blob
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key
from gofer.store.messages import StoredMessage, open_stored, seal_message
from gofer.store.tables import ASIDE, Trust, conversations, jobs, messages
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

Noticed = Callable[[Claim, StoredMessage, bool], None]
"""Is told of each message a run reads, and whether for the first time. Contract: neither blocks nor raises."""
Charge = Callable[[Connection, Claim, str, float], None]
"""Counts what a job has paid for something, in dollars."""
BLOB_REF = "blob:"
"""How an attachment's reference begins once its bytes are ours."""


def unread(connection: Connection, vault: Vault, claim: Claim, after: int) -> list[StoredMessage]:
    """The messages a job covers, after one it has seen. Purged ones are gone."""
    query = select(messages).where(
        messages.c.conversation_id == claim.conversation_id,
        messages.c.seq > after,
        messages.c.event.not_in(ASIDE),
        covered(claim),
    )
    rows = connection.execute(query.order_by(messages.c.seq)).all()
    return [_open(connection, vault, row) for row in rows if row.sealed is not None]


def covered(claim: Claim) -> ColumnElement[bool]:
    """Condition: the message is one that the job covers. Nothing that came after somebody stopped it is."""
    # As it is now, not as it was when the job was claimed: a run that is about to stop must take in nothing more.
    to = select(jobs.c.covers_to).where(jobs.c.id == claim.id).scalar_subquery()
    return messages.c.seq <= func.coalesce(to, messages.c.seq)


def read_one(connection: Connection, vault: Vault, conversation_id: str, seq: int) -> StoredMessage | None:
    """One message by its number; None when it was purged."""
    query = select(messages).where(messages.c.conversation_id == conversation_id, messages.c.seq == seq)
    row = connection.execute(query).one_or_none()
    return None if row is None or row.sealed is None else _open(connection, vault, row)


def _open(connection: Connection, vault: Vault, row: Any) -> StoredMessage:
    return open_stored(conversation_key(connection, vault, row.conversation_id), row)


class Admitter:
    """Admits messages on behalf of a run."""

    def __init__(
        self,
        *,
        database: Database,
        vault: Vault,
        accounts: LoadedConnections,
        redactor: Redactor,
        strangers: StrangerLimit | None = None,
        noticed: Noticed = lambda claim, read, fresh: None,
        charge: Charge = lambda connection, claim, key, dollars: None,
    ) -> None:
        self._database = database
        self._vault = vault
        self._accounts = accounts
        self._redactor = redactor
        self._strangers = strangers or StrangerLimit()
        self._noticed = noticed
        self._charge = charge

    async def admit(self, claim: Claim, found: Sequence[StoredMessage]) -> list[StoredMessage]:
        """The same messages, each with its author's trust; raises Temporary when a service cannot say now."""
        admitted = []
        for read in found:
            fresh = read.trust is Trust.UNKNOWN
            known = await self._admit(claim, read) if fresh else read
            self._noticed(claim, known, fresh)
            admitted.append(known)
        return admitted

    async def _admit(self, claim: Claim, read: StoredMessage) -> StoredMessage:
        # Asked again when an edit came between the question and its answer.
        while read.trust is Trust.UNKNOWN:
            admission = await self._ask(claim, read)
            if admission.text is not None:
                admission = dataclasses.replace(admission, text=self._redactor.redact(admission.text))
            read = await self._database.write(
                partial(
                    _store,
                    vault=self._vault,
                    claim=claim,
                    read=read,
                    admission=admission,
                    charge=self._charge,
                )
            )
        return read

    async def _ask(self, claim: Claim, read: StoredMessage) -> Admission:
        if read.connection_id is None:
            return Admission("stranger", note="no connection")
        try:
            connected = await self._accounts.get(read.connection_id)
            role = await self._database.read(
                partial(
                    known_role,
                    workspace_id=claim.workspace_id,
                    integration=connected.integration.name,
                    subject=read.message.author.id,
                )
            )
            author = read.message.author.id
            if role is None and not self._strangers.may_look_up(read.connection_id, author):
                return Admission("stranger", note="found to be a stranger often enough within the hour")
            admission = await connected.integration.admit(Unread(read.message, role), connected.account)
            if admission.trust == "stranger":
                self._strangers.was_stranger(read.connection_id, author)
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
