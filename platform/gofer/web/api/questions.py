"""Questions that runs have asked people."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request

from gofer.web.api.http import ApiAnswer, Number, RequestModel
from gofer.web.queries import read_for
from gofer.web.queries.questions import answer_question, list_questions


class QuestionFilter(RequestModel):
    """Which questions to list."""

    all: bool = Field(default=False, description="Also those that are answered or expired.")
    job: Number | None = Field(default=None, description="Those of one job only.")


class AnswerBody(RequestModel):
    """The answer to a question."""

    text: str = Field(min_length=1, max_length=100_000)


async def index(request: Request, query: QuestionFilter) -> dict[str, Any]:
    """List questions, oldest first."""
    found = await read_for(request, list_questions, job_id=query.job, closed=query.all, limit=200)
    return {"questions": found}


async def answer_one(request: Request, given: AnswerBody) -> ApiAnswer:
    """Answer a question."""
    question_id = request.path_params["id"]
    job_id = await answer_question(request, question_id, given.text)
    return ApiAnswer({"id": question_id, "job_id": job_id}, location=f"/jobs/{job_id}")
