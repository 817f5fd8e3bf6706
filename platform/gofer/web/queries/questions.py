"""Questions that runs have asked people, with their words."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.errors import NotFound
from gofer.jobs.outcome import OWNERS
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import goals, jobs, questions
from gofer.vault.envelope import Vault
from gofer.web.auth import visitor_of
from gofer.web.queries.jobs import of_agent


def list_questions(
    connection: Connection,
    vault: Vault,
    *,
    job_id: int | None = None,
    closed: bool = False,
    agent: str = "",
    owner: bool = False,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """The oldest first; with `closed` also those that are answered, with an agent those that it asked. What is asked of
    owners is shown to them alone."""
    of_goal = select(goals.c.id).where(goals.c.job_id == questions.c.job_id).limit(1).scalar_subquery()
    query = select(questions, of_goal.label("goal_id")).order_by(questions.c.asked_at).limit(limit)
    if not closed:
        query = query.where(questions.c.answered_at.is_(None))
    if job_id is not None:
        query = query.where(questions.c.job_id == job_id)
    if agent:
        query = query.where(questions.c.job_id.in_(select(jobs.c.id).where(of_agent(agent))))
    return [_describe(connection, vault, row, owner) for row in connection.execute(query).all()]


def answering_trust(request: Request) -> str:
    """How far whoever answers is trusted; a token that is an agent's speaks for no person."""
    visitor = visitor_of(request)
    if visitor.agent:
        return "stranger"
    return "owner" if visitor.may("owner") else "member"


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
    answer = None if row.answer is None else unseal(key, row.answer, "answer", row.id)["text"]
    return {**shown, "question": str(question), "choices": list(choices), "answer": answer}
