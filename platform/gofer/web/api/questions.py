"""Questions that runs have asked people."""

from __future__ import annotations

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gofer.jobs.control import answer
from gofer.web.api.http import Number, RequestModel, json_response, parse_body, parse_query, platform_of
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


async def index(request: Request) -> Response:
    """List questions, oldest first."""
    platform = platform_of(request)
    query = parse_query(request, QuestionFilter)
    found = await platform.database.read(
        list_questions,
        vault=platform.vault,
        job_id=query.job,
        closed=query.all,
        visitor=visitor_of(request),
        limit=200,
    )
    return json_response(request, {"questions": found})


async def answer_one(request: Request) -> Response:
    """Answer a question."""
    platform = platform_of(request)
    given = await parse_body(request, AnswerBody)
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
    return json_response(request, {"id": question_id, "job_id": job_id}, 202, location=f"/jobs/{job_id}")
