"""Answers to questions that people give with a button or with /answer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from gofer.errors import Conflict, Forbidden, Malformed, NotFound
from gofer.identity import role_now
from gofer.jobs.control import ROLES, answer
from gofer.jobs.outcome import OWNERS
from gofer.jobs.queue import Claim
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, unseal
from gofer.store.messages import StoredMessage
from gofer.store.tables import jobs, questions
from gofer.vault.envelope import Vault

NOT_YOURS = "This is not for you to answer."
NOT_OPEN = "That was answered already, or it is too late."
NO_QUESTION = "There is no such question. `/answer` takes the id of one, such as q_4k2m, and the answer."
GONE = "That button does nothing any more."


def press(connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, integration: str) -> str:
    """Answer the question a button belongs to; returns what to tell the presser."""
    question = _question(connection, claim, read.message.answers)
    if question is None:
        return GONE
    choices = _choices(connection, vault, question)
    if not 0 <= read.message.choice < len(choices):
        return NOT_OPEN
    return _give(connection, vault, claim, read, integration, question, choices[read.message.choice])


def answer_in_words(
    connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, integration: str
) -> str:
    """Answer a question by its id: one of a role anywhere, others where they were asked. Returns what to tell."""
    id_, _, words = read.message.arguments.strip().partition(" ")
    question = _question(connection, claim, id_)
    elsewhere = question is not None and question.conversation_id != claim.conversation_id
    if question is None or not words.strip() or (elsewhere and question.asked_of not in ROLES):
        return NO_QUESTION
    try:
        given = _give(connection, vault, claim, read, integration, question, words.strip())
    except Malformed as error:
        return str(error)
    return given if given in (NOT_YOURS, NOT_OPEN) else f"Noted: {given}"


def _question(connection: Connection, claim: Claim, id_: str) -> Any:
    """A question of the workspace, and whether it is too `late`; None when it is not there, or was forged."""
    query = (
        select(questions, jobs.c.workspace_id, (questions.c.expires_at < now()).label("late"))
        .join(jobs, jobs.c.id == questions.c.job_id)
        .where(questions.c.id == id_, jobs.c.workspace_id == claim.workspace_id)
    )
    found = connection.execute(query).one_or_none()
    return found if found is not None and row_macs.fits(connection, questions, found) else None


def _give(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    read: StoredMessage,
    integration: str,
    question: Any,
    chosen: str,
) -> str:
    """Give an answer in the name of whoever says it; returns it, or why it does not count."""
    message = read.message
    if question.asked_of and question.asked_of not in (*ROLES, message.author.id):
        return NOT_YOURS
    trust = read.trust.value
    if question.asked_of == OWNERS:
        # Looked up once more: whoever lost the role since may not answer.
        trust = role_now(connection, claim.workspace_id, integration, message.author.id)
    if question.late:
        return NOT_OPEN
    try:
        answer(
            connection,
            vault,
            question.id,
            chosen,
            by=message.author.id,
            name=message.author.name,
            trust=trust,
            said_in=str(claim.conversation_id),
        )
    except Forbidden:
        return NOT_YOURS
    except (Conflict, NotFound):
        return NOT_OPEN
    return chosen


def _choices(connection: Connection, vault: Vault, question: Any) -> list[str]:
    if question.choices is None or question.conversation_id is None:
        return []
    key = conversation_key(connection, vault, question.conversation_id)
    return [str(choice) for choice in unseal(key, question.choices, "choices", question.id)]
