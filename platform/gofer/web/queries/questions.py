"""Questions that runs have asked people, with their words."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, select
from starlette.requests import Request

from gofer.errors import NotFound
from gofer.jobs.control import answer
from gofer.jobs.outcome import OWNERS
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import goals, jobs, questions
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, actor, open_to, visitor_of
from gofer.web.queries import platform_of
from gofer.web.queries.jobs import of_agent, wake


def list_questions(
    connection: Connection,
    vault: Vault,
    *,
    job_id: int | None = None,
    closed: bool = False,
    visitor: Visitor,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Those of conversations that somebody may read, the oldest first; with `closed` also those that are answered, for
    an agent those that it asked. What is asked of owners is shown to them alone."""
    of_goal = select(goals.c.id).where(goals.c.job_id == questions.c.job_id).limit(1).scalar_subquery()
    query = select(questions, of_goal.label("goal_id")).order_by(questions.c.asked_at).limit(limit)
    if not closed:
        query = query.where(questions.c.answered_at.is_(None))
    if job_id is not None:
        query = query.where(questions.c.job_id == job_id)
    if visitor.agent:
        query = query.where(questions.c.job_id.in_(select(jobs.c.id).where(of_agent(visitor.agent))))
    else:
        query = query.where(_may_read(connection, visitor))
    owner = visitor.may("owner")
    return [_describe(connection, vault, row, owner) for row in connection.execute(query).all()]


def _may_read(connection: Connection, visitor: Visitor) -> ColumnElement[bool]:
    where = questions.c.conversation_id
    return where.is_(None) | open_to(connection, visitor, where)


def check_question(connection: Connection, question_id: str, visitor: Visitor) -> None:
    """Raises NotFound for a question of a conversation that somebody may not read."""
    hidden = select(questions.c.id).where(questions.c.id == question_id, ~_may_read(connection, visitor))
    if connection.execute(hidden).first() is not None:
        raise NotFound(f"There is no question {question_id[:60]}. `gofer questions list` shows those open.")


def answering_trust(request: Request) -> str:
    """How far whoever answers is trusted; a token that is an agent's speaks for no person."""
    visitor = visitor_of(request)
    if visitor.agent:
        return "stranger"
    return "owner" if visitor.may("owner") else "member"


async def answer_question(request: Request, question_id: str, text: str) -> int:
    """Answer a question in the name of whoever asks, and return the job that goes on; raises NotFound and Conflict."""
    platform = platform_of(request)
    await platform.database.read(check_question, question_id=question_id, visitor=visitor_of(request))
    answered = {"by": actor(request), "trust": answering_trust(request)}
    job_id = await platform.database.write(
        answer, vault=platform.vault, question_id=question_id, text=text, **answered
    )
    wake(platform)
    return job_id


_SHOWN = ("id", "job_id", "conversation_id", "asked_of", "asked_at", "expires_at", "answered_at", "goal_id")


FOR_OWNERS = "(This is for owners to read and to answer.)"


def _describe(connection: Connection, vault: Vault, row: Any, owner: bool) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in _SHOWN}
    if row.asked_of == OWNERS and not owner:
        return {**shown, "question": FOR_OWNERS, "choices": [], "answer": None}
    try:
        key = conversation_key(connection, vault, row.conversation_id or "")
    except NotFound:  # the conversation is purged
        return {**shown, "question": "", "choices": [], "answer": None}
    question = "" if row.sealed is None else unseal(key, row.sealed, "question", row.id)
    choices = [] if row.choices is None else unseal(key, row.choices, "choices", row.id)
    answered = None if row.answer is None else unseal(key, row.answer, "answer", row.id)["text"]
    return {**shown, "question": str(question), "choices": list(choices), "answer": answered}
