"""Answering the questions that runs have asked people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import redirect
from gofer.web.queries.questions import answer_question


@page("operator")
async def answer_one(request: Request) -> Response:
    """Answer a question."""
    text = text_of(await form_of(request), "text").strip()
    if not text:
        raise Malformed("Write an answer first.")
    job_id = await answer_question(request, request.path_params["id"], text)
    return redirect(f"/runs/{job_id}", "Answered. The run goes on.")
