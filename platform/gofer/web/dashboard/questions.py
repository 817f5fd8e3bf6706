"""Answering the questions that runs have asked people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.jobs.control import answer
from gofer.web.auth import actor, visitor_of
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect
from gofer.web.queries.jobs import wake
from gofer.web.queries.questions import answering_trust, check_question


@page("operator")
async def answer_one(request: Request) -> Response:
    """Answer a question."""
    platform, form = platform_of(request), await form_of(request)
    text = text_of(form, "text").strip()
    if not text:
        raise Malformed("Write an answer first.")
    question_id = request.path_params["id"]
    await platform.database.read(check_question, question_id=question_id, visitor=visitor_of(request))
    job_id = await platform.database.write(
        answer,
        vault=platform.vault,
        question_id=question_id,
        text=text,
        by=actor(request),
        trust=answering_trust(request),
    )
    wake(platform)
    return redirect(f"/runs/{job_id}", "Answered. The run goes on.")
