"""Plans replies: every part goes into the ledger, and the conversation keeps it as a message.

The caller holds the conversation's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, func, insert, select, update

from gofer.errors import NotFound
from gofer.integration import Author, Incoming
from gofer.jobs.ensure import ensure_delivery
from gofer.jobs.outcome import Draft, Wait
from gofer.jobs.queue import Claim
from gofer.store import events as log
from gofer.store import fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal
from gofer.store.ids import new_id
from gofer.store.messages import seal_message
from gofer.store.tables import (
    FORGOTTEN,
    Trust,
    conversations,
    jobs,
    messages,
    participants,
    questions,
    replies,
)
from gofer.vault.envelope import DataKey, Vault

SAID = "said"
"""The fact of a message of an agent that says which of its words are the model's, where not all are."""

MESSAGE = "message"
"""In a reply's content: the number of the message that the conversation keeps of it."""


class Speaker(Protocol):
    """The job that says something: a Claim, or the job's own row."""

    @property
    def id(self) -> int: ...

    @property
    def workspace_id(self) -> str: ...

    @property
    def conversation_id(self) -> str | None: ...

    @property
    def agent_id(self) -> str | None: ...


def plan_replies(
    connection: Connection,
    vault: Vault,
    claim: Speaker,
    drafts: tuple[Draft, ...],
    asked: Mapping[str, Any] | None = None,
    kept_as: str = "",
) -> bool:
    """Put every part into the ledger and make the job that sends them.

    `kept_as` is the event of the message that the conversation keeps, when the reply's kind does not say it.
    """
    if not drafts or claim.conversation_id is None:
        return False
    try:
        key = conversation_key(connection, vault, claim.conversation_id)
    except NotFound:
        return False  # purged while it ran: there is nobody left to tell
    woke = False
    for draft in drafts:
        seq = _remember(
            connection, key, claim, draft, kept_as or ("note" if draft.kind == "note" else "reply")
        )
        first = 1 + _last_part(connection, claim.id, draft.kind)
        total = first - 1 + len(draft.parts)
        for part, text in enumerate(draft.parts, first):
            content = {"text": text, "facts": dict(draft.facts), **((asked or {}) if part == total else {})}
            if draft.stopped_by:
                content["stopped_by"] = draft.stopped_by
            if draft.narrowed:
                content["narrowed"] = True
            if seq is not None:
                content[MESSAGE] = seq
            fast_sql.fetch(
                connection,
                _PLAN,
                {
                    "workspace_id": claim.workspace_id,
                    "conversation_id": claim.conversation_id,
                    "binding_id": draft.binding_id,
                    "job_id": claim.id,
                    "kind": draft.kind,
                    "part": part,
                    "parts": total,
                    "reply_to": draft.reply_to,
                    "sealed": seal(key, content, "reply", claim.id, draft.kind, part),
                },
            )
        log.record(
            connection, "reply.planned", claim.workspace_id, conversation_id=claim.conversation_id,
            data={"job": claim.id, "kind": draft.kind, "parts": total},
        )  # fmt: skip
        woke |= ensure_delivery(connection, claim.workspace_id, claim.conversation_id, draft.binding_id)
    return woke


def _remember(connection: Connection, key: DataKey, claim: Speaker, draft: Draft, event: str) -> int | None:
    """Store what an agent says as a message of the conversation, and return its number. It wakes nobody."""
    if claim.agent_id is None or claim.conversation_id is None:
        return None
    seq = int(connection.execute(_NEXT_SEQ, {"conversation": claim.conversation_id}).scalar_one())
    author = Author(agent_author(claim.agent_id), is_bot=True)
    if fast_sql.first(connection, _FORGOTTEN, {"job": claim.id}) is not None:
        event = FORGOTTEN
    message = Incoming(
        conversation="",
        author=author,
        text="".join(draft.parts).removeprefix(draft.signature),
        addressed=False,
        event=event,
        facts={} if (said := _model_words(draft)) is None else {SAID: said},
    )
    trust = Trust.STRANGER if draft.narrowed else Trust.MEMBER
    connection.execute(
        insert(messages).values(
            conversation_id=claim.conversation_id,
            seq=seq,
            author=author.id,
            addressed=False,
            trust=trust,
            event=message.event,
            external_id="",
            sealed=seal_message(key, claim.conversation_id, seq, message, trust),
            admitted_at=now(),
            created_at=now(),
        )
    )
    return seq


def _model_words(draft: Draft) -> str | None:
    return "" if draft.said is None and draft.kind == "error" else draft.said


# Said after a new epoch began, but about what was before it.
_FORGOTTEN = (
    select(jobs.c.id)
    .join(participants, participants.c.id == jobs.c.participant_id)
    .where(jobs.c.id == bindparam("job"), jobs.c.covers_to <= participants.c.epoch_seq)
)
_NEXT_SEQ = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"))
    .values(last_seq=conversations.c.last_seq + 1)
    .returning(conversations.c.last_seq)
)


def agent_author(agent_id: str) -> str:
    """How an agent is named as the author of a message."""
    return f"agent:{agent_id}"


def _last_part(connection: Connection, job_id: int, kind: str) -> int:
    """The number of the last part planned before. A job that is redriven may plan notes and errors again; a final reply
    only once."""
    if kind == "final":
        return 0
    query = select(func.max(replies.c.part)).where(replies.c.job_id == job_id, replies.c.kind == kind)
    return int(connection.execute(query).scalar() or 0)


_PLAN = insert(replies).values(
    state="planned", external_id="", tries=0, reason="", created_at=now(), sent_at=None, confirm_at=None
)


def is_open(connection: Connection, claim: Claim, wait: Wait) -> bool:
    """Whether the question of this call was asked before, and nobody has answered it."""
    asked = {"job": claim.id, "call": wait.call_id}
    return bool(wait.call_id) and connection.execute(_OPEN, asked).first() is not None


_OPEN = (
    select(questions.c.id)
    .where(questions.c.job_id == bindparam("job"), questions.c.call_id == bindparam("call"))
    .where(questions.c.answered_at.is_(None))
    .limit(1)
)


def ask(connection: Connection, vault: Vault, claim: Claim, wait: Wait) -> dict[str, Any]:
    """Keep the question; returns what its last part carries out, so that a press can be told from another."""
    question_id = new_id("q")
    sealed = choices = None
    if claim.conversation_id is not None:
        key = conversation_key(connection, vault, claim.conversation_id)
        sealed = seal(key, wait.question, "question", question_id)
        choices = seal(key, list(wait.choices), "choices", question_id) if wait.choices else None
    expires = None if wait.expires_after is None else now() + wait.expires_after
    row = {
        "id": question_id,
        "job_id": claim.id,
        "call_id": wait.call_id,
        "conversation_id": claim.conversation_id,
        "asked_of": wait.asked_of,
        "sealed": sealed,
        "choices": choices,
        "asked_at": now(),
        "expires_at": expires,
    }
    row_macs.insert(connection, questions, row)
    log.record(
        connection, "job.waiting", claim.workspace_id, conversation_id=claim.conversation_id,
        data={"job": claim.id, "question": question_id},
    )  # fmt: skip
    return {"question": question_id, "choices": list(wait.choices)}
