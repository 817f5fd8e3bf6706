"""The fence: a run that has lost its job writes nothing more."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from gofer.errors import Fenced
from gofer.jobs.queue import Claim
from gofer.store import fast_sql
from gofer.store.tables import JobState, in_state, jobs


def hold(connection: Connection, claim: Claim) -> None:
    """Lock the job's row if this run still has the job; raises Fenced otherwise. Called before every write of a run."""
    if (
        fast_sql.first(connection, _HOLD, {"job": claim.id, "holder": claim.owner, "held": claim.fence})
        is None
    ):
        raise Fenced


_HOLD = (
    select(jobs.c.id)
    .where(
        jobs.c.id == bindparam("job"), jobs.c.owner == bindparam("holder"), jobs.c.fence == bindparam("held")
    )
    .where(in_state(JobState.RUNNING))
    .with_for_update()
)
