"""The append-only log: writing one event, and following all of them without skipping one that commits late."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, insert, literal_column, select, tuple_, update

from gofer.errors import Fenced
from gofer.store import fast_sql
from gofer.store.db_time import now
from gofer.store.encryption import seal, unseal
from gofer.store.tables import JobState, events, in_state, jobs
from gofer.vault.envelope import DataKey

KINDS: dict[str, str] = {
    "process.started": "A process came up.",
    "process.stopped": "A process went down in order.",
    "worker.spawned": "The supervisor started a process.",
    "worker.exited": "A process that the supervisor had started ended; unless it was asked to, with its last lines.",
    "worker.unhealthy": "The supervisor ended a process that did not work any more.",
    "worker.crash_loop": "Processes ended so often that starting them again at once made no sense.",
    "revision.started": "Another release was made the current one, on probation.",
    "revision.promoted": "A release has proved itself: it is the good one from now on.",
    "revision.rolled_back": "A release did not work, and the one before it was put back, if there was one.",
    "schedule.changed": "A schedule was added, changed or removed.",
    "delivery.accepted": "A request was verified and kept.",
    "delivery.redriven": "A repeat of a delivery whose job had died ran that job again.",
    "message.admitted": "A message's author was looked up; its trust is known from here on.",
    "job.created": "A job was made.",
    "job.promoted": "A blocked job's lane became free.",
    "job.redriven": "A dead or cancelled job was put back to work by a person or a repeated delivery.",
    "job.cancel_requested": "Somebody asked to stop a job.",
    "job.paused": "Somebody paused a run: it does nothing more after its step.",
    "job.resumed": "Somebody let a paused run go on.",
    "attempt.started": "A worker claimed the job.",
    "attempt.finished": "A worker's try ended; the outcome says how, a detail what is set up wrong.",
    "attempt.lost": "A worker went silent past its lease; the job goes to another.",
    "job.waiting": "The job waits for a person.",
    "job.woken": "A job that waited for other jobs became ready, because they have ended.",
    "job.signalled": "A job was told that something it depends on has changed.",
    "goal.planned": "A goal's plan was made or changed.",
    "goal.changed": "A goal was made, moved to another state, or somebody said something about it.",
    "goal.blocked": "A goal cannot go on without a person; the reason says why.",
    "worker.saturated": "What an agent's workers have to do has changed: how many tasks wait and are worked on.",
    "task.changed": "A task was made, begun, or ended; its state says which.",
    "question.answered": "The person answered.",
    "question.expired": "Nobody answered in time.",
    "question.withdrawn": "What was asked was decided elsewhere, so nobody need answer any more.",
    "reply.planned": "A reply was put into the ledger.",
    "reply.placed": "A part exists at the service.",
    "reply.sent": "A part is complete at the service.",
    "reply.failed": "A part will not be sent.",
    "reply.vanished": "A part was deleted at the service before it was complete, and is placed again.",
    "key.rotated": "Every wrapped key was wrapped anew by the active master key.",
    "conversation.purged": "A conversation's content was destroyed.",
    "conversation.moved": "A conversation has another reference at its service.",
    "person.let_in": "Somebody became an owner or a member.",
    "stranger.turned_away": "Somebody unknown was told so.",
    "identity.changed": "A layer of an agent's identity was changed as an owner approved.",
    "connection.changed": "A connection was added, changed or removed.",
    "conversation.changed": "Somebody chose who answers a conversation, with which model, or muted a heartbeat there.",
    "heartbeat.found": "An agent's heartbeat found something that is due, and what it recommends.",
    "heartbeat.nudged": "An agent's heartbeat wrote to a conversation: why, and what it recommends.",
    "trigger.hop": "A hop of a Trigger was made or changed: what is tried to wake an external agent, and why.",
    "trigger.late": "An external agent's words came for a hop that was over: they are kept and never sent.",
    "trigger.blocked": "An external agent got nowhere in a conversation and is not woken there any more.",
    "trigger.unblocked": "A person let an external agent be woken again.",
    "error": "Something went wrong that no other event describes.",
}
"""Every kind the infrastructure writes; the agent's own kinds are listed in `gofer.agent.journal`."""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A follower's place in the log."""

    tx: int = 0
    id: int = 0

    def __str__(self) -> str:
        return f"{self.tx}.{self.id}"

    @classmethod
    def parse(cls, value: str) -> Cursor:
        """From `Last-Event-ID`; raises ValueError for anything else."""
        place = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", value)
        if place is None:
            raise ValueError("not a place in the event log")
        return cls(int(place[1]), int(place[2]))


def record(connection: Connection, /, kind: str, workspace_id: str, **fields: Any) -> None:
    """Append one event that belongs to no job's own numbering."""
    values = {"kind": kind, "workspace_id": workspace_id, **fields}
    fast_sql.fetch(connection, _INSERT[connection.dialect.name], values)


def record_many(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append several events at once."""
    fast_sql.many(connection, _INSERT[connection.dialect.name], rows)


_BLANK: dict[str, Any] = {
    "version": 1,
    "parent_id": None,
    "conversation_id": None,
    "job_id": None,
    "seq": None,
    "fence": None,
    "delivery_id": None,
    "reply_id": None,
    "data": {},
    "sealed": None,
}
_COLUMNS: dict[str, Any] = {"workspace_id": bindparam("workspace_id"), "kind": bindparam("kind")}
_COLUMNS |= {name: bindparam(name, value, type_=events.c[name].type) for name, value in _BLANK.items()}
TX: Any = literal_column("pg_current_xact_id()::text::bigint")
_INSERT = {
    "sqlite": insert(events).values(**_COLUMNS, at=now(), tx=0),
    "postgresql": insert(events).values(**_COLUMNS, at=now(), tx=TX),
}
_INSERT_RETURNING = {dialect: statement.returning(events.c.id) for dialect, statement in _INSERT.items()}

_NUMBER = (
    update(jobs)
    .where(
        jobs.c.id == bindparam("job"),
        jobs.c.owner == bindparam("holder"),
        jobs.c.fence == bindparam("held"),
        in_state(JobState.RUNNING),
    )
    .values(event_seq=jobs.c.event_seq + 1)
    .returning(jobs.c.event_seq, jobs.c.workspace_id, jobs.c.conversation_id, jobs.c.reason)
)


class Appended(NamedTuple):
    """An event's id and number, and the reason in its job's row as it was written."""

    id: int
    seq: int
    reason: str


def append(
    connection: Connection,
    *,
    job_id: int,
    owner: str,
    fence: int,
    kind: str,
    version: int = 1,
    data: Mapping[str, Any] | None = None,
    key: DataKey | None = None,
    words: Mapping[str, Any] | None = None,
    parent_id: int | None = None,
) -> Appended:
    """Append an event of a running job. Raises Fenced when the job has another owner.

    `words` are sealed with `key`, bound to the event's number. Taking the number updates the job's row first, and
    that lock is what makes the fence hold: an `INSERT … WHERE EXISTS` would race with a takeover
    under READ COMMITTED.
    """
    row = fast_sql.first(connection, _NUMBER, {"job": job_id, "holder": owner, "held": fence})
    if row is None:
        raise Fenced
    values = {
        "workspace_id": row.workspace_id,
        "conversation_id": row.conversation_id,
        "kind": kind,
        "version": version,
        "parent_id": parent_id,
        "job_id": job_id,
        "seq": row.event_seq,
        "fence": fence,
        "data": dict(data or {}),
        "sealed": seal(key, words, *_place(job_id, row.event_seq)) if key is not None and words else None,
    }
    event_id = fast_sql.scalar(connection, _INSERT_RETURNING[connection.dialect.name], values)
    return Appended(event_id, row.event_seq, row.reason)


def open_words(key: DataKey, event: Mapping[str, Any]) -> dict[str, Any]:
    """The sealed words of an event; empty when it has none."""
    if event["sealed"] is None:
        return {}
    words: dict[str, Any] = unseal(key, event["sealed"], *_place(event["job_id"], event["seq"]))
    return words


def _place(job_id: int, seq: int) -> tuple[str, int, int]:
    """What an event's words are bound to."""
    return "event", job_id, seq


def of_job(connection: Connection, job_id: int) -> list[dict[str, Any]]:
    """Every event of a job, in order."""
    return [row._asdict() for row in fast_sql.fetch(connection, _OF_JOB, {"job": job_id})]


_OF_JOB = select(events).where(events.c.job_id == bindparam("job")).order_by(events.c.seq)


def after(connection: Connection, cursor: Cursor, *, limit: int = 500) -> tuple[list[dict[str, Any]], Cursor]:
    """The events after a place in the log, and the place after them.

    On Postgres ids are not handed out in commit order, so the order is by transaction, and nothing is shown
    from the oldest transaction still open onwards: what commits late is read late, never skipped.
    """
    query = (
        select(events)
        .where(tuple_(events.c.tx, events.c.id) > tuple_(cursor.tx, cursor.id))
        .order_by(events.c.tx, events.c.id)
        .limit(limit)
    )
    if connection.dialect.name == "postgresql":
        query = query.where(
            events.c.tx < literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        )
    rows = [dict(row._mapping) for row in connection.execute(query)]
    return rows, Cursor(rows[-1]["tx"], rows[-1]["id"]) if rows else cursor
