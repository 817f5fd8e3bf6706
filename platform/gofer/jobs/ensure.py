"""Makes the job that is needed unless there is one: a participant's next answer, or the delivery of a ledger's replies.

The caller holds the conversation's lock, so that what it read stays true until its commit.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from gofer.jobs.kinds import ANSWER, DELIVER
from gofer.jobs.queue import SERVICE, submit
from gofer.store import fast_sql
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    LIVE,
    JobState,
    agents,
    bindings,
    conversations,
    in_state,
    jobs,
    messages,
    participants,
)

CONFIRMING = "confirming"
"""The reason of a deliver job that waits to repeat a final edit after a takeover."""
ASLEEP_WHEN_CLOSED = "asleep_when_closed"
"""In an agent's settings: it runs elsewhere, and nobody wakes it in a closed conversation."""


def asleep_when_closed(connection: Connection) -> set[str]:
    """Agents that are not woken in closed conversations. What wants them there waits until they are opened again."""
    rows = connection.execute(select(agents.c.id, agents.c.settings)).all()
    return {row.id for row in rows if row.settings.get(ASLEEP_WHEN_CLOSED)}


def ensure_answer(connection: Connection, participant_id: str, *, delay: float = 0) -> bool:
    """Make the participant's next job when it has unread messages and no job. Conversation locked."""
    row = fast_sql.first(connection, _PARTICIPANT, {"who": participant_id})
    if row is None or (row.closed_at is not None and row.agent_id in asleep_when_closed(connection)):
        return False
    woken_by = {"conversation": row.conversation_id, "seq_": row.wake_seq}
    via = fast_sql.scalar(connection, _WOKEN_BY, woken_by)
    return ensure_job(connection, row, row.workspace_id, live=row.live, via=via, delay=delay)


def ensure_job(
    connection: Connection,
    participant: Any,
    workspace_id: str,
    *,
    live: str | None,
    via: str | None,
    delay: float = 0,
    patient: bool = False,
) -> bool:
    """Make the participant's next job unless it has one. Returns whether workers should look.

    `live` is the state of the job it has, read under the conversation's lock.
    """
    if live is not None:
        # A message that comes while a question is open wakes the run, which then sees it. A run that waits for other
        # jobs hears it afterwards.
        waits = live == JobState.WAITING and not patient
        return waits and bool(fast_sql.fetch(connection, _STOP_WAITING, {"lane_": participant.id}))
    submit(
        connection,
        workspace_id=workspace_id,
        kind=ANSWER,
        lane=participant.id,
        priority=participant.priority,
        delay=delay,
        conversation_id=participant.conversation_id,
        participant_id=participant.id,
        agent_id=participant.agent_id,
        connection_id=via,
        covers_from=participant.read_seq,
    )
    return True


def live_state(lane: Any) -> Any:
    """The state of the live job in a lane, if there is one, as a column."""
    return select(jobs.c.state).where(jobs.c.lane == lane, in_state(*LIVE)).scalar_subquery()


_STOP_WAITING = (
    update(jobs)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.WAITING), jobs.c.reason.not_like("jobs.%"))
    .values(state=JobState.READY, run_at=now())
    .returning(jobs.c.id)
)
_PARTICIPANT = (
    select(
        *(
            participants.c.id,
            participants.c.conversation_id,
            participants.c.agent_id,
            participants.c.read_seq,
        ),
        *(participants.c.wake_seq, participants.c.priority, conversations.c.workspace_id),
        conversations.c.closed_at,
        live_state(participants.c.id).label("live"),
    )
    .join(conversations, conversations.c.id == participants.c.conversation_id)
    .where(participants.c.id == bindparam("who"), participants.c.wake_seq > participants.c.read_seq)
)
_WOKEN_BY = select(messages.c.connection_id).where(
    messages.c.conversation_id == bindparam("conversation"), messages.c.seq == bindparam("seq_")
)


def ensure_delivery(connection: Connection, workspace_id: str, conversation_id: str, binding_id: str) -> bool:
    """Make the job that sends what the ledger holds for a binding, unless there is one. True when one was made."""
    lane = f"deliver:{binding_id}"
    if fast_sql.first(connection, _LANE_LIVE, {"lane_": lane}) is not None:
        # A new reply must not wait for a job that only waits to repeat an old edit.
        return bool(fast_sql.fetch(connection, _HURRY, {"lane_": lane}))
    bound = fast_sql.first(connection, _BOUND_TO, {"binding": binding_id})
    if bound.conversation_id != conversation_id:
        # It tells an owner about somebody else's conversation: the lane belongs to the owner's conversation.
        lock_conversation(connection, bound.conversation_id)
        if fast_sql.first(connection, _LANE_LIVE, {"lane_": lane}) is not None:
            return False
    submit(
        connection,
        workspace_id=workspace_id,
        kind=DELIVER,
        lane=lane,
        pool=SERVICE,
        payload={"binding_id": binding_id},
        max_attempts=12,
        conversation_id=bound.conversation_id,
        connection_id=bound.connection_id,
    )
    return True


_LANE_LIVE = select(jobs.c.id).where(jobs.c.lane == bindparam("lane_"), in_state(*LIVE)).limit(1)
_HURRY = (
    update(jobs)
    .where(jobs.c.lane == bindparam("lane_"), in_state(JobState.SCHEDULED), jobs.c.reason == CONFIRMING)
    .values(state=JobState.READY)
    .returning(jobs.c.id)
)
_BOUND_TO = select(bindings.c.connection_id, bindings.c.conversation_id).where(
    bindings.c.id == bindparam("binding")
)
