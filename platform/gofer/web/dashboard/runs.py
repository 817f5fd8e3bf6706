"""Runs: every job, filtered by the address bar, newest first; several retried or stopped at once."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.agent.prices import MICROS
from gofer.errors import Conflict, Malformed, NotFound
from gofer.jobs.control import cancel, redrive
from gofer.jobs.kinds import ANSWER
from gofer.store.tables import ENDED_BADLY, LIVE, JobState, attempts, conversations, in_state, jobs, spends
from gofer.validation import first_error
from gofer.web.api.http import Number
from gofer.web.dashboard.endpoints import (
    PER_PAGE,
    agent_names,
    by,
    connection_names,
    form_of,
    number_of,
    page,
    rows,
    text_of,
    wake,
)
from gofer.web.dashboard.render import go, platform_of, render
from gofer.web.titles import with_titles

MOST_AT_ONCE = 200
UNFINISHED = (*LIVE, JobState.BLOCKED)
VERBS = {"redrive": redrive, "cancel": cancel}


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


def wanted_of(request: Request) -> RunFilter:
    """From the address; raises Malformed."""
    given = {name: value for name, value in request.query_params.items() if value}
    try:
        return RunFilter.model_validate(given)
    except ValidationError as error:
        raise Malformed(f"{first_error(error)}.") from None


@page("viewer")
async def index(request: Request) -> Response:
    """The list."""
    platform, wanted = platform_of(request), wanted_of(request)
    found = await platform.database.read(partial(read, wanted=wanted))
    runs = found["runs"] = await with_titles(platform, found["runs"])
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
    # Of those that live there are few: a sum keeps planners from walking through all others in their order.
    order = jobs.c.id + 0 if wanted.state in UNFINISHED else jobs.c.id
    found = rows(connection, _query(wanted).order_by(order.desc()).limit(PER_PAGE))
    ids = [each["id"] for each in found]
    costs, taken = _costs(connection, ids), _taken(connection, ids)
    for each in found:
        each["cost"], each["seconds"] = costs.get(each["id"], 0.0), taken.get(each["id"])
    return {
        "runs": found,
        "agents": agent_names(connection),
        "connections": connection_names(connection),
        "dead": _some_dead(connection),
    }


_COLUMNS = (
    jobs.c.id, jobs.c.kind, jobs.c.state, jobs.c.reason, jobs.c.attempts, jobs.c.agent_id, jobs.c.connection_id,
    jobs.c.conversation_id, jobs.c.cancel_requested, jobs.c.created_at, jobs.c.run_at, jobs.c.finished_at,
    conversations.c.title,
)  # fmt: skip


def _query(wanted: RunFilter) -> Any:
    query = select(*_COLUMNS).outerjoin(conversations, conversations.c.id == jobs.c.conversation_id)
    return query.where(*_conditions(wanted))


def _conditions(wanted: RunFilter) -> list[Any]:
    found: list[Any] = [in_state(wanted.state)] if wanted.state else []
    if wanted.state in LIVE:
        found.append(in_state(*LIVE))
    if wanted.state in (JobState.DEAD, JobState.CANCELLED):
        found.append(ENDED_BADLY)
    if wanted.kind != "all":
        found.append(jobs.c.kind == wanted.kind)
    if wanted.before is not None:
        found.append(jobs.c.id < wanted.before)
    given = {
        "agent_id": wanted.agent,
        "connection_id": wanted.connection,
        "conversation_id": wanted.conversation,
    }
    return found + [jobs.c[name] == value for name, value in given.items() if value]


def _costs(connection: Connection, ids: list[int]) -> dict[int, float]:
    query = (
        select(spends.c.job_id, func.sum(spends.c.micros))
        .where(spends.c.job_id.in_(ids))
        .group_by(spends.c.job_id)
    )
    return {job_id: int(micros) / MICROS for job_id, micros in connection.execute(query)}


def _taken(connection: Connection, ids: list[int]) -> dict[int, float]:
    """Seconds of work, waiting left out."""
    query = (
        select(attempts.c.job_id, func.sum(attempts.c.ended_at - attempts.c.started_at))
        .where(attempts.c.job_id.in_(ids))
        .group_by(attempts.c.job_id)
    )
    return {job_id: float(seconds) for job_id, seconds in connection.execute(query) if seconds is not None}


def _some_dead(connection: Connection) -> bool:
    return (
        connection.execute(select(jobs.c.id).where(ENDED_BADLY, in_state(JobState.DEAD)).limit(1)).first()
        is not None
    )


@page("viewer")
async def announce(request: Request) -> Response:
    """How many runs have come since the page was shown; rows never move under a reader's finger."""
    wanted = wanted_of(request)
    after = number_of(request, "after") or 0
    query = select(jobs.c.id).where(jobs.c.id > after, *_conditions(wanted)).limit(PER_PAGE)
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
    ids = [int(value) for value in ticked if re.fullmatch("[0-9]{1,18}", value)][:MOST_AT_ONCE]
    if not ids:
        raise Malformed("Tick the runs first.")
    done, refused = await _steer(request, verb, ids)
    wake(request)
    what = "retried" if verb == "redrive" else "asked to stop"
    said = f"{done} {what}." + (f" {len(refused)} not: {refused[0]}" if refused else "")
    return go(text_of(form, "back", "/runs") if text_of(form, "back").startswith("/runs") else "/runs", said,
              "warn" if refused else "ok")  # fmt: skip


async def _steer(request: Request, verb: str, ids: list[int]) -> tuple[int, list[str]]:
    done, refused = 0, []
    for job_id in ids:
        try:
            await platform_of(request).database.write(partial(VERBS[verb], job_id=job_id, by=by(request)))
            done += 1
        except (Conflict, NotFound) as error:
            refused.append(str(error))
    return done, refused


@page("operator")
async def steer_one(request: Request) -> Response:
    """Retry or stop one."""
    verb, job_id = request.path_params["verb"], request.path_params["id"]
    if verb not in VERBS:
        raise NotFound("There is no such action.")
    state = await platform_of(request).database.write(partial(VERBS[verb], job_id=job_id, by=by(request)))
    wake(request)
    said = "Put back to work." if verb == "redrive" else f"Asked to stop; it is {state} now."
    return go(f"/runs/{job_id}", said)
