"""Jobs that fetch for a connection what no webhook brings: polling, catching up, and setting up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from gofer.errors import ConfigError
from gofer.jobs.queue import SERVICE, lock_lane, submit
from gofer.store.db_time import now
from gofer.store.tables import LIVE, JobState, connections, in_state, jobs

POLL = "poll"
"""The kind of job that polls a connection for as long as its process lives."""
SET_UP = "set_up"
"""The kind of job that prepares a connection's service, once at each start."""
CATCH_UP = "catch_up"
"""The kind of job that fetches once what a service tried to deliver while we were away."""
SCHEDULABLE = (CATCH_UP, SET_UP)
"""The kinds of job a schedule may make. Polling never ends by itself, and a token has one poller."""


def check_schedulable(connection: Connection, payload: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the payload names an existing connection: the job would only die."""
    named = payload.get("connection_id")
    query = select(connections.c.id).where(connections.c.id == str(named))
    if not isinstance(named, str) or connection.execute(query).first() is None:
        raise ConfigError(
            'payload: must name a connection there is, as {"connection_id": "…"}. '
            "`gofer connections list` shows them."
        )


def ensure_inflow(
    connection: Connection, *, polling: frozenset[str], catching_up: frozenset[str], public: bool
) -> int:
    """At start: one poll job per connection that needs one, one catch-up per connection that can. Returns how many.

    A connection polls when its integration can and no public URL lets the service reach us.
    """
    made = 0
    for row in connection.execute(select(connections).where(connections.c.enabled)).all():
        wanted = [SET_UP]
        if row.integration in polling and not public:
            wanted.append(POLL)
        if row.integration in catching_up:
            wanted.append(CATCH_UP)
        made += sum(_ensure(connection, row.workspace_id, kind, row.id) for kind in wanted)
    return made


def fetch_now(connection: Connection, connection_id: str) -> None:
    """Make jobs ready that waited for somebody to fix the connection."""
    waiting = update(jobs).where(*_put_off(connection_id))
    connection.execute(waiting.values(state=JobState.READY, run_at=now()))


def fetch_trouble(connection: Connection, connection_id: str) -> str:
    """Why polling or catching up of a connection is waiting; empty when it is not."""
    waiting = select(jobs.c.reason).where(*_put_off(connection_id))
    return connection.execute(waiting.order_by(jobs.c.id).limit(1)).scalar() or ""


def _put_off(connection_id: str) -> tuple[ColumnElement[bool], ...]:
    lanes = [lane_of(kind, connection_id) for kind in (POLL, CATCH_UP)]
    return jobs.c.lane.in_(lanes), in_state(JobState.SCHEDULED)


def ensure_catch_up(connection: Connection, integrations: frozenset[str]) -> int:
    """One catch-up per connection that can, unless one is under way. Returns how many."""
    query = select(connections).where(connections.c.enabled, connections.c.integration.in_(integrations))
    rows = connection.execute(query).all()
    return sum(_ensure(connection, row.workspace_id, CATCH_UP, row.id) for row in rows)


def lane_of(kind: str, connection_id: str) -> str:
    return f"{kind}:{connection_id}"


def _ensure(connection: Connection, workspace_id: str, kind: str, connection_id: str) -> bool:
    lane = lane_of(kind, connection_id)
    lock_lane(connection, lane)  # two processes may start at once
    live = select(jobs.c.id).where(jobs.c.lane == lane, in_state(*LIVE)).limit(1)
    if connection.execute(live).first() is not None:
        return False
    submit(
        connection,
        workspace_id=workspace_id,
        kind=kind,
        lane=lane,
        pool=SERVICE,
        payload={"connection_id": connection_id},
        # Not capped by its connection: the poller is how anything comes in at all.
        max_attempts=1_000_000,
    )
    return True
