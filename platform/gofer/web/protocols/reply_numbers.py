"""What was answered in a conversation, numbered from 1 without gaps, so that a client can ask for what it missed.

The number of a reply is its place among all replies of its conversation. Pruning old replies counts them in
`Conversation.pruned_replies`, so that the numbers of the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.memory.records import turn_id
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import ReplyState, bindings, conversations, jobs, replies
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.redaction import Redactor

AT_ONCE = 100
UNSENT = (ReplyState.PLANNED, ReplyState.PLACED)


@dataclass(frozen=True, slots=True)
class ReplyPlace:
    """How far somebody has read: a number, and the row that has it."""

    number: int = 0
    reply_id: int = 0


@dataclass(frozen=True, slots=True)
class NumberedReply:
    """One answer, note or apology."""

    number: int
    id: int
    """Of its row."""
    job_id: int
    text: str
    kind: str
    """final, error or note."""
    stopped_by: str
    """Why the run ended before its work was done; empty for an answer."""
    reason: str
    """Why its job ended, when that was no success."""
    question: str
    choices: tuple[str, ...]
    memory_id: str
    """Empty for the answer to a command, which no agent gave."""
    at: float

    @property
    def place(self) -> ReplyPlace:
        """The place after it."""
        return ReplyPlace(self.number, self.id)


def last_place(connection: Connection, conversation_id: str) -> ReplyPlace:
    """The place after every reply that was sent."""
    pruned = _pruned(connection, conversation_id)
    unsent = select(func.min(replies.c.id)).where(_of(conversation_id), replies.c.state.in_(UNSENT))
    first_unsent = connection.execute(unsent).scalar()
    query = select(func.count(), func.max(replies.c.id)).where(_of(conversation_id))
    if first_unsent is not None:
        query = query.where(replies.c.id < first_unsent)
    count, last = connection.execute(query).one()
    return ReplyPlace(pruned + int(count), int(last or 0))


def place_of(connection: Connection, conversation_id: str, number: int) -> ReplyPlace:
    """The place after the reply with a number; after the last one when there are not as many."""
    pruned, last = _pruned(connection, conversation_id), last_place(connection, conversation_id)
    if number >= last.number:
        return last
    if number <= pruned:
        return ReplyPlace(pruned, 0)
    query = select(replies.c.id).where(_of(conversation_id)).order_by(replies.c.id)
    found = connection.execute(query.offset(number - pruned - 1).limit(1)).scalar_one()
    return ReplyPlace(number, int(found))


def replies_after(
    connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str, place: ReplyPlace
) -> list[NumberedReply]:
    """What was sent after a place, in order; at most `AT_ONCE` at once."""
    query = (
        select(replies, jobs.c.reason.label("why"))
        .outerjoin(jobs, jobs.c.id == replies.c.job_id)
        .where(_of(conversation_id), replies.c.id > place.reply_id)
        .order_by(replies.c.id)
        .limit(AT_ONCE)
    )
    rows = connection.execute(query).all()
    if not rows:
        return []
    key = conversation_key(connection, vault, conversation_id)
    sent = takewhile(lambda row: row.state not in UNSENT, rows)
    return list(_numbered(key, redactor, conversation_id, sent, place.number))


def all_replies_after(
    connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str, place: ReplyPlace
) -> list[NumberedReply]:
    """Everything that was sent after a place, in order. For who follows closely: it is little."""
    found: list[NumberedReply] = []
    while page := replies_after(connection, vault, redactor, conversation_id, place):
        found += page
        place = page[-1].place
    return found


def _numbered(
    key: DataKey, redactor: Redactor, conversation_id: str, rows: Iterator[Any], last: int
) -> Iterator[NumberedReply]:
    for number, row in enumerate(rows, last + 1):
        content = unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part) if row.sealed else {}
        seq = content.get("message")
        yield NumberedReply(
            number=number,
            id=row.id,
            job_id=row.job_id,
            text=redactor.redact(content.get("text", "")),
            kind=row.kind,
            stopped_by=content.get("stopped_by", ""),
            reason=row.why or "",
            question=content.get("question", ""),
            choices=tuple(redactor.redact(choice) for choice in content.get("choices", ())),
            memory_id=turn_id(conversation_id, seq) if seq is not None else "",
            at=row.created_at,
        )


def _of(conversation_id: str) -> Any:
    # What a job of this conversation says elsewhere, such as a question to the owners, is not for this client.
    here = select(bindings.c.id).where(bindings.c.conversation_id == conversation_id)
    return (replies.c.conversation_id == conversation_id) & replies.c.binding_id.in_(here)


def _pruned(connection: Connection, conversation_id: str) -> int:
    query = select(conversations.c.pruned_replies).where(conversations.c.id == conversation_id)
    return int(connection.execute(query).scalar() or 0)
