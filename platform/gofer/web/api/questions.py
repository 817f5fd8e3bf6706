"""Questions that runs have asked people."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import NotFound
from gofer.jobs.control import answer
from gofer.jobs.notifications import EVENTS, JOBS
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import questions
from gofer.vault.envelope import Vault
from gofer.web.api.http import RequestModel, answered, asked, by, platform_of, queried


class QuestionFilter(RequestModel):
    """Which questions to list."""

    all: bool = Field(default=False, description="Also those that are answered or expired.")


class AnswerBody(RequestModel):
    """What the person says."""

    text: str = Field(min_length=1, max_length=100_000)


async def index(request: Request) -> Response:
    """List questions, oldest first."""
    platform = platform_of(request)
    wanted = queried(request, QuestionFilter)
    found = await platform.database.read(partial(_list, vault=platform.vault, everything=wanted.all))
    return answered(request, {"questions": found})


def _list(connection: Connection, vault: Vault, everything: bool) -> list[dict[str, Any]]:
    query = select(questions).order_by(questions.c.asked_at).limit(200)
    if not everything:
        query = query.where(questions.c.answered_at.is_(None))
    return [
        {
            "id": row.id,
            "job_id": row.job_id,
            "conversation_id": row.conversation_id,
            "asked_of": row.asked_of,
            "question": _text(connection, vault, row),
            "asked_at": row.asked_at,
            "expires_at": row.expires_at,
            "answered_at": row.answered_at,
        }
        for row in connection.execute(query)
    ]


def _text(connection: Connection, vault: Vault, row: Any) -> str:
    if row.sealed is None or row.conversation_id is None:
        return ""
    try:
        key = conversation_key(connection, vault, row.conversation_id)
    except NotFound:
        return ""
    return str(unseal(key, row.sealed, "question", row.id))


async def answer_one(request: Request) -> Response:
    """Answer a question."""
    platform = platform_of(request)
    given = await asked(request, AnswerBody)
    question_id = request.path_params["id"]
    job_id = await platform.database.write(
        partial(answer, vault=platform.vault, question_id=question_id, text=given.text, by=by(request))
    )
    platform.signals.wake(JOBS)
    platform.signals.wake(EVENTS)
    return answered(request, {"id": question_id, "job_id": job_id}, 202, location=f"/jobs/{job_id}")
