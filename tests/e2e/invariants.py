"""What must be true after everything that went wrong, read from the store and from the services' own ledgers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, select

from gofer.outbox.ledger import outside_key
from gofer.store.tables import (
    JobState,
    ReplyState,
    attempts,
    bindings,
    deliveries,
    events,
    jobs,
    messages,
    participants,
    replies,
)

FINISHED = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Shown:
    """A complete reply as people see it: its key and its place, in the order of arrival."""

    key: str
    room: str


@dataclass
class Findings:
    """What is wrong; all of it must be empty."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    held_twice: list[str] = field(default_factory=list)
    """Jobs that two workers held at once, or whose journal has a gap."""

    def __bool__(self) -> bool:
        return any((self.lost, self.doubled, self.out_of_order, self.stranded, self.held_twice))


def settled(connection: Connection) -> bool:
    """Whether everything has reached an end: no job is alive and no reply is on its way."""
    alive = connection.execute(select(jobs.c.id).where(jobs.c.state.not_in(FINISHED)).limit(1)).first()
    unsent = (
        select(replies.c.id)
        .where(
            replies.c.state.not_in((ReplyState.SENT, ReplyState.FAILED)) | replies.c.confirm_at.is_not(None)
        )
        .limit(1)
    )
    return alive is None and connection.execute(unsent).first() is None


def look(
    connection: Connection, acknowledged: Mapping[str, Sequence[str]], shown: Sequence[Shown]
) -> Findings:
    """Compare what was acknowledged (ids by room, in the order they were sent) with what is stored and shown."""
    found = Findings()
    _deliveries(connection, acknowledged, found)
    answered_by = _coverage(connection, found)
    _answers(connection, acknowledged, answered_by, shown, found)
    _ends(connection, found)
    _attempts(connection, found)
    _journals(connection, found)
    return found


def _deliveries(connection: Connection, acknowledged: Mapping[str, Sequence[str]], found: Findings) -> None:
    """Each acknowledged delivery is there once, as one message, in the order it was sent."""
    kept = Counter(connection.execute(select(deliveries.c.external_id)).scalars())
    found.doubled += [f"delivery {id_}" for id_, times in kept.items() if times > 1]
    by_room: dict[str, list[str]] = defaultdict(list)
    query = (
        select(bindings.c.ref, messages.c.external_id)
        .join(bindings, bindings.c.conversation_id == messages.c.conversation_id)
        .where(messages.c.external_id != "")
        .order_by(messages.c.conversation_id, messages.c.seq)
    )
    for room, id_ in connection.execute(query):
        by_room[room].append(id_)
    for room, ids in acknowledged.items():
        stored = by_room[room]
        found.lost += [f"message {id_}" for id_ in ids if kept[id_] == 0 or id_ not in stored]
        found.doubled += [f"message {id_}" for id_, times in Counter(stored).items() if times > 1]
        if [id_ for id_ in stored if id_ in ids] != list(ids):
            found.out_of_order.append(f"messages of {room}: {stored}")


def _coverage(connection: Connection, found: Findings) -> dict[str, list[int]]:
    """Which finished jobs answer for each addressed message."""
    asked = connection.execute(select(messages).where(messages.c.addressed)).all()
    done = connection.execute(select(jobs).where(jobs.c.kind == "answer", jobs.c.state.in_(FINISHED))).all()
    by_conversation: dict[str, list[Any]] = defaultdict(list)
    for job in done:
        by_conversation[job.conversation_id].append(job)
    answered: dict[str, list[int]] = {}
    for message in asked:
        answered[message.external_id] = [
            job.id
            for job in by_conversation[message.conversation_id]
            if job.covers_from < message.seq <= (job.covers_to or 0)
        ]
    found.doubled += [f"answers to {id_}: jobs {ids}" for id_, ids in answered.items() if len(ids) > 1]
    return answered


def _answers(
    connection: Connection,
    acknowledged: Mapping[str, Sequence[str]],
    answered_by: Mapping[str, Sequence[int]],
    shown: Sequence[Shown],
    found: Findings,
) -> None:
    """Each acknowledged message is answered by exactly one complete reply, in order."""
    times = Counter(reply.key for reply in shown)
    found.doubled += [f"reply {key}" for key, count in times.items() if count > 1]
    planned: dict[int, list[str]] = defaultdict(list)
    for row in connection.execute(select(replies).where(replies.c.kind != "note")):
        planned[row.job_id].append(outside_key(row))
    for ids in acknowledged.values():
        for id_ in ids:
            keys = [key for job in answered_by.get(id_, ()) for key in planned[job]]
            if not keys or any(times[key] == 0 for key in keys):
                found.lost.append(f"answer to {id_} (jobs {answered_by.get(id_)}, replies {keys})")
    by_room: dict[str, list[int]] = defaultdict(list)
    for reply in shown:
        by_room[reply.room].append(int(reply.key.split("-")[1]))
    for room, numbers in by_room.items():
        if numbers != sorted(numbers):
            found.out_of_order.append(f"replies in {room}: jobs {numbers}")


def _ends(connection: Connection, found: Findings) -> None:
    for job in connection.execute(select(jobs).where(jobs.c.state.not_in(FINISHED))):
        found.stranded.append(f"job {job.id} ({job.kind}) is {job.state}: {job.reason}")
    for reply in connection.execute(select(replies).where(replies.c.state != ReplyState.SENT)):
        found.stranded.append(f"reply {reply.id} of job {reply.job_id} is {reply.state}: {reply.reason}")
    wanted = select(participants.c.id).where(participants.c.wake_seq > participants.c.read_seq)
    found.stranded += [f"participant {id_}" for id_ in connection.execute(wanted).scalars()]


def _attempts(connection: Connection, found: Findings) -> None:
    """A job's tries follow each other; the clock is the database's own on both sides."""
    by_job: dict[int, list[Any]] = defaultdict(list)
    for attempt in connection.execute(select(attempts).order_by(attempts.c.fence)):
        by_job[attempt.job_id].append(attempt)
    for job_id, tries in by_job.items():
        for earlier, later in pairwise(tries):
            if earlier.ended_at is None or earlier.ended_at > later.started_at:
                found.held_twice.append(f"job {job_id}: tries {earlier.fence} and {later.fence}")
        if tries[-1].ended_at is None:
            found.stranded.append(f"the last try of job {job_id} has no end")


def _journals(connection: Connection, found: Findings) -> None:
    """Each job numbers its events without a gap; and no call of a tool was started twice."""
    numbers: dict[int, list[int]] = defaultdict(list)
    started: Counter[tuple[int, str]] = Counter()
    for event in connection.execute(
        select(events).where(events.c.job_id.is_not(None)).order_by(events.c.seq)
    ):
        numbers[event.job_id].append(event.seq)
        if event.kind == "tool.started":
            started[event.job_id, str(event.data.get("call_id", event.id))] += 1
    for job_id, seqs in numbers.items():
        if seqs != list(range(1, len(seqs) + 1)):
            found.held_twice.append(f"events of job {job_id}: {seqs}")
    found.doubled += [f"call {call} of job {job}" for (job, call), count in started.items() if count > 1]
