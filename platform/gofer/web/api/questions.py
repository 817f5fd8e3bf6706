"""Questions that runs have asked people."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request

from gofer.jobs.control import answer
from gofer.web.api.http import ApiAnswer, Number, RequestModel, platform_of
from gofer.web.auth import actor, visitor_of
from gofer.web.queries.jobs import wake
from gofer.web.queries.questions import answering_trust, check_question, list_questions


class QuestionFilter(RequestModel):
    """Which questions to list."""

    all: bool = Field(default=False, description="Also those that are answered or expired.")
    job: Number | None = Field(default=None, description="Those of one job only.")


class AnswerBody(RequestModel):
    """The answer to a question."""

    text: str = Field(min_length=1, max_length=100_000)


async def index(request: Request, query: QuestionFilter) -> dict[str, Any]:
    """List questions, oldest first."""
    platform = platform_of(request)
    found = await platform.database.read(
        list_questions,
        vault=platform.vault,
        job_id=query.job,
        closed=query.all,
        visitor=visitor_of(request),
        limit=200,
    )
    return {"questions": found}


async def answer_one(request: Request, given: AnswerBody) -> ApiAnswer:
    """Answer a question."""
    platform = platform_of(request)
    question_id = request.path_params["id"]
    await platform.database.read(check_question, question_id=question_id, visitor=visitor_of(request))
    job_id = await platform.database.write(
        answer,
        vault=platform.vault,
        question_id=question_id,
        text=given.text,
        by=actor(request),
        trust=answering_trust(request),
    )
    wake(platform)
    return ApiAnswer({"id": question_id, "job_id": job_id}, location=f"/jobs/{job_id}")
