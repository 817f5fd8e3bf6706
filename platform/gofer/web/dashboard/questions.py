"""Questions that runs have asked people: read for several pages, answered here."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed, NotFound
from gofer.jobs.control import answer
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import questions
from gofer.vault.envelope import Vault
from gofer.web.dashboard.endpoints import by, form_of, page, text_of, wake
from gofer.web.dashboard.render import go, platform_of


def open_questions(
    connection: Connection, vault: Vault, *, job_id: int | None = None, limit: int = 50
) -> list[dict[str, Any]]:
    """Those nobody has answered, oldest first, with their words."""
    query = select(questions).where(questions.c.answered_at.is_(None))
    if job_id is not None:
        query = query.where(questions.c.job_id == job_id)
    found = connection.execute(query.order_by(questions.c.asked_at).limit(limit)).all()
    return [_told(connection, vault, row) for row in found]


def _told(connection: Connection, vault: Vault, row: Any) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("id", "job_id", "asked_of", "asked_at", "expires_at")}
    try:
        key = conversation_key(connection, vault, row.conversation_id or "")
    except NotFound:
        return {**told, "text": "", "choices": []}
    text = "" if row.sealed is None else unseal(key, row.sealed, "question", row.id)
    choices = [] if row.choices is None else unseal(key, row.choices, "choices", row.id)
    return {**told, "text": str(text), "choices": list(choices)}


@page("operator")
async def answer_one(request: Request) -> Response:
    """Answer a question."""
    platform, form = platform_of(request), await form_of(request)
    text = text_of(form, "text").strip()
    if not text:
        raise Malformed("Write an answer first.")
    job_id = await platform.database.write(
        partial(
            answer, vault=platform.vault, question_id=request.path_params["id"], text=text, by=by(request)
        )
    )
    wake(request)
    return go(f"/runs/{job_id}", "Answered. The run goes on.")
