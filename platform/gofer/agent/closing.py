"""Closing a shell: forgetting it, so that whoever tidies shells ends it."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from gofer.errors import Conflict, NotFound
from gofer.store.locks import lock_conversation
from gofer.store.tables import JobState, in_state, jobs, shells


def close_shell(connection: Connection, conversation_id: str, agent_id: str) -> None:
    """Its processes end within a minute, its files stay for the next. Raises NotFound, or Conflict while in use."""
    lock_conversation(connection, conversation_id)
    at_work = select(jobs.c.id).where(
        jobs.c.conversation_id == conversation_id, jobs.c.agent_id == agent_id, in_state(JobState.RUNNING)
    )
    running = connection.execute(at_work.limit(1)).scalar()
    if running is not None:
        raise Conflict(f"Job {running} is using it. Stop that first.")
    here = (shells.c.conversation_id == conversation_id) & (shells.c.agent_id == agent_id)
    if connection.execute(delete(shells).where(here)).rowcount == 0:
        raise NotFound("There is no such shell; it may have been closed.")
