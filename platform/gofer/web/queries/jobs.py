"""Jobs: lists of them, one with its attempts, replies and events, and steering them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from gofer.app import Platform
from gofer.errors import GoferError
from gofer.jobs import control
from gofer.jobs.event_stream import open_events
from gofer.jobs.notifications import EVENTS, JOBS
from gofer.memory.manager import MEMORY
from gofer.store.tables import (
    ENDED_BADLY,
    LIVE,
    JobState,
    agents,
    attempts,
    conversations,
    events,
    in_state,
    jobs,
    replies,
)
from gofer.web.queries import rows, without

UNFINISHED = (*LIVE, JobState.BLOCKED)
VERBS = {
    "redrive": control.redrive,
    "cancel": control.cancel,
    "pause": control.pause,
    "resume": control.resume,
}


def job_conditions(
    *,
    states: Collection[JobState] = (),
    kind: str = "",
    agent_id: str = "",
    agent: str = "",
    connection_id: str = "",
    conversation_id: str = "",
    before: int | None = None,
    tidying: bool = True,
) -> list[ColumnElement[bool]]:
    """The filter of a list of jobs; empty values do not count. Without `tidying`, jobs of the memory manager are left
    out, unless they are asked for by their kind or state."""
    found: list[ColumnElement[bool]] = [in_state(*states)] if states else []
    # Planners use a partial index only where its own condition is said as well.
    if states and set(states) <= {*LIVE}:
        found.append(in_state(*LIVE))
    if states and set(states) <= {JobState.DEAD, JobState.CANCELLED}:
        found.append(ENDED_BADLY)
    if before is not None:
        found.append(jobs.c.id < before)
    if agent:
        found.append(of_agent(agent))
    if not (tidying or kind or states):
        found.append(jobs.c.kind != MEMORY)
    columns = {
        jobs.c.kind: kind,
        jobs.c.agent_id: agent_id,
        jobs.c.connection_id: connection_id,
        jobs.c.conversation_id: conversation_id,
    }
    return found + [column == value for column, value in columns.items() if value]


def of_agent(name: str) -> ColumnElement[bool]:
    """The condition for jobs of an agent, by its name."""
    return jobs.c.agent_id.in_(select(agents.c.id).where(agents.c.name == name))


def check_job(connection: Connection, job_id: int, agent: str) -> None:
    """Raises NotFound unless there is such a job, and it is the agent's if one is named."""
    if (
        agent
        and connection.execute(select(jobs.c.id).where(jobs.c.id == job_id, of_agent(agent))).first() is None
    ):
        raise control.no_job(job_id)
    control.find_job(connection, job_id)


def list_jobs(
    connection: Connection,
    /,
    *,
    states: Collection[JobState] = (),
    limit: int,
    titles: bool = False,
    **conditions: Any,
) -> list[dict[str, Any]]:
    """The newest first; with `titles` each with the title of its conversation."""
    query = select(*without(jobs, "payload")).where(*job_conditions(states=states, **conditions))
    if titles:
        query = query.add_columns(conversations.c.title).outerjoin(
            conversations, conversations.c.id == jobs.c.conversation_id
        )
    # Few jobs are unfinished: the sum keeps planners from walking through all others in their order.
    order = jobs.c.id + 0 if states and set(states) <= {*UNFINISHED} else jobs.c.id
    return rows(connection, query.order_by(order.desc()).limit(limit))


def attempts_of(connection: Connection, job_id: int) -> list[dict[str, Any]]:
    """A job's attempts in order."""
    return rows(connection, select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.fence))


def replies_of(connection: Connection, job_id: int) -> list[dict[str, Any]]:
    """The replies that a job has planned or given up."""
    of_job = (replies.c.job_id == job_id) | (replies.c.failed_in == job_id)
    return rows(connection, select(*without(replies)).where(of_job).order_by(replies.c.id))


def events_of(
    connection: Connection,
    platform: Platform,
    job_id: int,
    *,
    words: bool = True,
    before: int | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """A job's newest events before a number, in order, with or without their words."""
    query = select(*(events.columns if words else without(events))).where(events.c.job_id == job_id)
    if before is not None:
        query = query.where(events.c.seq < before)
    found = rows(connection, query.order_by(events.c.seq.desc()).limit(limit))[::-1]
    return open_events(connection, platform.vault, platform.redactor, found) if words else found


async def steer_job(platform: Platform, verb: str, job_id: int, *, by: str) -> JobState:
    """Stop a job or run it again; returns its state then."""
    state = await platform.database.write(VERBS[verb], job_id=job_id, by=by)
    wake(platform)
    return state


async def steer_jobs(
    platform: Platform, verb: str, ids: Iterable[int], *, by: str
) -> tuple[dict[int, JobState], dict[int, str]]:
    """The states of those that were stopped or run again, and why the others were not."""
    done: dict[int, JobState] = {}
    refused: dict[int, str] = {}
    for job_id in dict.fromkeys(ids):
        try:
            done[job_id] = await platform.database.write(VERBS[verb], job_id=job_id, by=by)
        except GoferError as error:
            refused[job_id] = str(error)
    wake(platform)
    return done, refused


def wake(platform: Platform) -> None:
    """Tell workers and watchers that something changed."""
    platform.signals.wake(JOBS)
    platform.signals.wake(EVENTS)
