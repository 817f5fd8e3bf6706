"""Jobs: what is to be done, is being done and was done."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Malformed
from gofer.jobs.control import find_job
from gofer.store.tables import JobState
from gofer.web.api.http import ApiAnswer, Number, Paged, RequestModel, next_cursor, path_number, platform_of
from gofer.web.auth import actor, note, record_reading, visitor_of
from gofer.web.queries.jobs import (
    attempts_of,
    check_job,
    events_of,
    list_jobs,
    replies_of,
    steer_job,
    steer_jobs,
)
from gofer.web.queries.runtimes import hops_of_job, kept_posts

_STATES = "|".join(JobState)


class JobFilter(Paged):
    """Which jobs to list, newest first."""

    state: str = Field(
        default="",
        json_schema_extra={"pattern": rf"^(({_STATES})(,({_STATES}))*)?$"},
        description="One state, or several with commas.",
    )
    kind: str = ""
    conversation: str = ""
    connection: str = ""
    tidying: bool = Field(
        default=False,
        description="Also jobs that tidy memory, which are else listed where a state or their kind is asked for.",
    )


class JobDetail(RequestModel):
    """How much of a job to show."""

    words: bool = Field(default=False, description="Also what was said in its events.")


class JobIds(RequestModel):
    """Which jobs to cancel or redrive."""

    ids: list[Number] = Field(min_length=1, max_length=500)


async def index(request: Request, query: JobFilter) -> dict[str, Any]:
    """List jobs."""
    found = await platform_of(request).database.read(
        list_jobs,
        states=_states(query.state) if query.state else [],
        kind=query.kind,
        connection_id=query.connection,
        conversation_id=query.conversation,
        agent=visitor_of(request).agent,
        before=query.before,
        tidying=query.tidying,
        limit=query.limit,
    )
    return {"jobs": found, "next": next_cursor(found, query.limit)}


def _states(given: str) -> list[JobState]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in JobState.__members__.values():
            raise Malformed(f"No job is in the state {name[:40]!r}. The states are: {', '.join(JobState)}.")
    return [JobState(name) for name in names]


async def show(request: Request, query: JobDetail) -> dict[str, Any]:
    """Show a job with its attempts, events and replies."""
    platform = platform_of(request)
    agent = visitor_of(request).agent
    show_job = partial(_show, job_id=path_number(request), platform=platform, words=query.words, agent=agent)
    found = await platform.database.read(show_job)
    if query.words:
        await record_reading(request, found["job"]["conversation_id"], f"job {found['job']['id']}")
    return found


def _show(connection: Connection, job_id: int, platform: Platform, words: bool, agent: str) -> dict[str, Any]:
    check_job(connection, job_id, agent)
    return {
        "job": dict(find_job(connection, job_id)._mapping),
        "attempts": attempts_of(connection, job_id),
        "replies": replies_of(connection, job_id),
        "hops": hops_of_job(connection, job_id),
        "kept": kept_posts(connection, platform, job_id, words=words),
        "events": events_of(connection, platform, job_id, words=words),
    }


async def cancel_one(request: Request) -> ApiAnswer:
    """Ask a job to stop."""
    return await _steer(request, "cancel")


async def redrive_one(request: Request) -> ApiAnswer:
    """Run a dead or cancelled job again."""
    return await _steer(request, "redrive")


async def _steer(request: Request, verb: str) -> ApiAnswer:
    job_id = path_number(request)
    await platform_of(request).database.read(check_job, job_id=job_id, agent=visitor_of(request).agent)
    state = await steer_job(platform_of(request), verb, job_id, by=actor(request))
    return ApiAnswer({"id": job_id, "state": state}, location=f"/jobs/{job_id}")


async def cancel_many(request: Request, chosen: JobIds) -> dict[str, Any]:
    """Ask several jobs to stop. The answer says of each whether it could."""
    return await _steer_many(request, chosen, "cancel")


async def redrive_many(request: Request, chosen: JobIds) -> dict[str, Any]:
    """Run several dead or cancelled jobs again. The answer says of each whether it could."""
    return await _steer_many(request, chosen, "redrive")


async def _steer_many(request: Request, chosen: JobIds, verb: str) -> dict[str, Any]:
    done, refused = await steer_jobs(platform_of(request), verb, chosen.ids, by=actor(request))
    note(request, ids=[*done][:50])
    return {
        "done": [{"id": job_id, "state": state} for job_id, state in done.items()],
        "refused": {str(job_id): why for job_id, why in refused.items()},
    }
