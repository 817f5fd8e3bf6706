"""Jobs: what is to be done, is being done and was done."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.jobs.signals import EVENTS, JOBS
from gofer.jobs.steer import cancel, find_job, redrive
from gofer.store.tables import JobState, attempts, events, jobs, replies
from gofer.web.control.asking import BY, MOST_ROWS, Question, answered, platform_of, queried, rows, without


class Wanted(Question):
    """Which jobs to list, newest first."""

    state: str = ""
    """One state, or several with commas."""
    kind: str = ""
    conversation: str = ""
    connection: str = ""
    before: int | None = None
    limit: int = Field(default=50, ge=1, le=MOST_ROWS)


async def index(request: Request) -> Response:
    """List jobs."""
    wanted = queried(request, Wanted)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"jobs": found})


def _list(connection: Connection, wanted: Wanted) -> list[dict[str, Any]]:
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
    try:
        return [JobState(name.strip()) for name in given.split(",")]
    except ValueError as error:
        raise Malformed(f"{error}. The states are: {', '.join(JobState)}.") from None


async def show(request: Request) -> Response:
    """One job with its attempts, events and replies."""
    found = await platform_of(request).database.read(partial(_show, job_id=request.path_params["id"]))
    return answered(request, found)


def _show(connection: Connection, job_id: int) -> dict[str, Any]:
    job = dict(find_job(connection, job_id)._mapping)
    of_job = {
        "attempts": select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.fence),
        "events": select(*without(events)).where(events.c.job_id == job_id).order_by(events.c.seq),
        "replies": select(*without(replies)).where(replies.c.job_id == job_id).order_by(replies.c.id),
    }
    return {"job": job, **{name: rows(connection, query) for name, query in of_job.items()}}


async def cancel_one(request: Request) -> Response:
    """Ask a job to stop."""
    return await _steer(request, cancel)


async def redrive_one(request: Request) -> Response:
    """Run a dead or cancelled job again."""
    return await _steer(request, redrive)


async def _steer(request: Request, verb: Any) -> Response:
    platform, job_id = platform_of(request), request.path_params["id"]
    state = await platform.database.write(partial(verb, job_id=job_id, by=BY))
    platform.signals.wake(JOBS)
    platform.signals.wake(EVENTS)
    return answered(request, {"id": job_id, "state": state})
