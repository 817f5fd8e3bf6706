"""Runs: every job, filtered by the address bar, newest first; several retried or stopped at once."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed, NotFound
from gofer.jobs.kinds import ANSWER
from gofer.store.tables import JobState, attempts, jobs
from gofer.validation import first_error
from gofer.web.api.http import Number
from gofer.web.auth import actor, visitor_of
from gofer.web.dashboard.endpoints import PER_PAGE, form_of, page, query_number, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import agent_names, connection_names
from gofer.web.queries.costs import costs_by_job
from gofer.web.queries.jobs import VERBS, job_conditions, list_jobs, steer_job, steer_jobs
from gofer.web.titles import with_titles

MAX_AT_ONCE = 200


class RunFilter(BaseModel):
    """What the address asks for."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    state: JobState | None = None
    kind: str = ANSWER
    """A kind of job; `all` for every one."""
    agent: str = ""
    connection: str = ""
    conversation: str = ""
    before: Number | None = None

    def address(self, **changes: Any) -> str:
        """The page with this filter."""
        values = {**self.model_dump(exclude_defaults=True, mode="json"), **changes}
        given = {name: value for name, value in values.items() if value not in (None, "")}
        return f"/runs?{urlencode(given)}" if given else "/runs"

    def conditions(self) -> dict[str, Any]:
        """For `list_jobs`."""
        return {
            "states": [self.state] if self.state else [],
            "kind": "" if self.kind == "all" else self.kind,
            "agent_id": self.agent,
            "connection_id": self.connection,
            "conversation_id": self.conversation,
            "before": self.before,
        }


def read_filter(request: Request) -> RunFilter:
    """From the address; raises Malformed."""
    given = {name: value for name, value in request.query_params.items() if value}
    try:
        return RunFilter.model_validate(given)
    except ValidationError as error:
        raise Malformed(f"{first_error(error)}.") from None


@page("viewer")
async def index(request: Request) -> Response:
    """The list."""
    platform, wanted = platform_of(request), read_filter(request)
    found = await platform.database.read(read, wanted=wanted)
    runs = found["runs"] = await with_titles(platform, found["runs"], visitor_of(request))
    more = wanted.address(before=runs[-1]["id"]) if len(runs) == PER_PAGE else ""
    return render(
        request,
        "runs.html",
        **found,
        wanted=wanted.model_dump(mode="json"),
        here_is=wanted.address(),
        newest=runs[0]["id"] if runs else 0,
        more=more,
        states=[state.value for state in JobState],
    )


def read(connection: Connection, wanted: RunFilter) -> dict[str, Any]:
    """The rows and the names they need."""
    found = list_jobs(connection, limit=PER_PAGE, titles=True, **wanted.conditions())
    ids = [each["id"] for each in found]
    costs, taken = costs_by_job(connection, ids), _taken(connection, ids)
    for each in found:
        each["cost"], each["seconds"] = costs.get(each["id"], 0.0), taken.get(each["id"])
    dead = select(jobs.c.id).where(*job_conditions(states=[JobState.DEAD])).limit(1)
    return {
        "runs": found,
        "agents": agent_names(connection),
        "connections": connection_names(connection),
        "dead": connection.execute(dead).first() is not None,
    }


def _taken(connection: Connection, ids: list[int]) -> dict[int, float]:
    """Seconds of work, waiting left out."""
    query = (
        select(attempts.c.job_id, func.sum(attempts.c.ended_at - attempts.c.started_at))
        .where(attempts.c.job_id.in_(ids))
        .group_by(attempts.c.job_id)
    )
    return {job_id: float(seconds) for job_id, seconds in connection.execute(query) if seconds is not None}


@page("viewer")
async def announce(request: Request) -> Response:
    """How many runs have come since the page was shown; rows never move under a reader's finger."""
    wanted = read_filter(request)
    after = query_number(request, "after") or 0
    conditions = job_conditions(**wanted.conditions())
    query = select(jobs.c.id).where(jobs.c.id > after, *conditions).limit(PER_PAGE)
    new = await platform_of(request).database.read(lambda connection: len(connection.execute(query).all()))
    return render(request, "announce.html", new=new, most=PER_PAGE, address=wanted.address(before=None))


@page("operator")
async def steer_many(request: Request) -> Response:
    """Retry or stop every run that was ticked."""
    form = await form_of(request)
    verb = text_of(form, "verb")
    if verb not in VERBS:
        raise Malformed(f"verb: must be one of {', '.join(VERBS)}.")
    ticked = [value for value in form.getlist("job") if isinstance(value, str)]
    ids = [int(value) for value in ticked if re.fullmatch("[0-9]{1,18}", value)][:MAX_AT_ONCE]
    if not ids:
        raise Malformed("Tick the runs first.")
    done, refused = await steer_jobs(platform_of(request), verb, ids, by=actor(request))
    what = "retried" if verb == "redrive" else "asked to stop"
    said = f"{len(done)} {what}." + (
        f" {len(refused)} not: {next(iter(refused.values()))}" if refused else ""
    )
    return redirect(text_of(form, "back", "/runs") if text_of(form, "back").startswith("/runs") else "/runs", said,
              "warn" if refused else "ok")  # fmt: skip


@page("operator")
async def steer_one(request: Request) -> Response:
    """Retry or stop one."""
    verb, job_id = request.path_params["verb"], request.path_params["id"]
    if verb not in VERBS:
        raise NotFound("There is no such action.")
    state = await steer_job(platform_of(request), verb, job_id, by=actor(request))
    said = "Put back to work." if verb == "redrive" else f"Asked to stop; it is {state} now."
    return redirect(f"/runs/{job_id}", said)
