"""Jobs: what is to be done, is being done and was done."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.errors import GoferError, Malformed
from gofer.jobs.control import cancel, find_job, redrive
from gofer.jobs.event_stream import opened
from gofer.jobs.notifications import EVENTS, JOBS
from gofer.store.tables import JobState, attempts, events, jobs, replies
from gofer.web.api.http import (
    EmptyBody,
    Number,
    Paged,
    RequestModel,
    answered,
    asked,
    by,
    next_of,
    number_in,
    platform_of,
    queried,
    rows,
    without,
)
from gofer.web.auth import note, words_read

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


class JobDetail(RequestModel):
    """How much of a job to show."""

    words: bool = Field(default=False, description="Also what was said in its events.")


class JobIds(RequestModel):
    """Which jobs to cancel or redrive."""

    ids: list[Number] = Field(min_length=1, max_length=500)


async def index(request: Request) -> Response:
    """List jobs."""
    wanted = queried(request, JobFilter)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"jobs": found, "next": next_of(found, wanted.limit)})


def _list(connection: Connection, wanted: JobFilter) -> list[dict[str, Any]]:
    query = select(*without(jobs, "payload")).order_by(jobs.c.id.desc()).limit(wanted.limit)
    if wanted.state:
        query = query.where(jobs.c.state.in_(_states(wanted.state)))
    for column, value in (
        (jobs.c.kind, wanted.kind),
        (jobs.c.conversation_id, wanted.conversation),
        (jobs.c.connection_id, wanted.connection),
    ):
        if value:
            query = query.where(column == value)
    if wanted.before is not None:
        query = query.where(jobs.c.id < wanted.before)
    return rows(connection, query)


def _states(given: str) -> list[JobState]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in JobState.__members__.values():
            raise Malformed(f"No job is in the state {name[:40]!r}. The states are: {', '.join(JobState)}.")
    return [JobState(name) for name in names]


async def show(request: Request) -> Response:
    """One job with its attempts, events and replies."""
    platform, wanted = platform_of(request), queried(request, JobDetail)
    show_job = partial(_show, job_id=number_in(request), platform=platform, words=wanted.words)
    found = await platform.database.read(show_job)
    if wanted.words:
        await words_read(request, found["job"]["conversation_id"], f"job {found['job']['id']}")
    return answered(request, found)


def _show(connection: Connection, job_id: int, platform: Platform, words: bool) -> dict[str, Any]:
    job = dict(find_job(connection, job_id)._mapping)
    of_job = {
        "attempts": select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.fence),
        "replies": select(*without(replies))
        .where((replies.c.job_id == job_id) | (replies.c.failed_in == job_id))
        .order_by(replies.c.id),
    }
    told = {name: rows(connection, query) for name, query in of_job.items()}
    columns = list(events.columns) if words else without(events)
    found = rows(connection, select(*columns).where(events.c.job_id == job_id).order_by(events.c.seq))
    if words:
        found = opened(connection, platform.vault, platform.redactor, found)
    return {"job": job, **told, "events": found}


async def cancel_one(request: Request) -> Response:
    """Ask a job to stop."""
    return await _steer(request, cancel)


async def redrive_one(request: Request) -> Response:
    """Run a dead or cancelled job again."""
    return await _steer(request, redrive)


async def _steer(request: Request, verb: Any) -> Response:
    platform, job_id = platform_of(request), number_in(request)
    await asked(request, EmptyBody)
    state = await platform.database.write(partial(verb, job_id=job_id, by=by(request)))
    _wake(platform)
    return answered(request, {"id": job_id, "state": state}, 202, location=f"/jobs/{job_id}")


def _wake(platform: Platform) -> None:
    platform.signals.wake(JOBS)
    platform.signals.wake(EVENTS)


async def cancel_many(request: Request) -> Response:
    """Ask several jobs to stop; one that cannot does not keep the others from it."""
    return await _steer_many(request, cancel)


async def redrive_many(request: Request) -> Response:
    """Run several dead or cancelled jobs again; one that cannot does not keep the others from it."""
    return await _steer_many(request, redrive)


async def _steer_many(request: Request, verb: Any) -> Response:
    platform, wish = platform_of(request), await asked(request, JobIds)
    done: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for job_id in dict.fromkeys(wish.ids):
        try:
            state = await platform.database.write(partial(verb, job_id=job_id, by=by(request)))
            done.append({"id": job_id, "state": state})
        except GoferError as error:
            refused[str(job_id)] = str(error)
    _wake(platform)
    note(request, ids=[each["id"] for each in done][:50])
    return answered(request, {"done": done, "refused": refused})
