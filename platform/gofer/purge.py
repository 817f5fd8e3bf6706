"""Purging a conversation: its key, its words and its files, wherever they are."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, delete, select, update

from gofer.errors import NotFound
from gofer.jobs.kinds import SAY
from gofer.memory.scopes import conversation_scope, empty_scope
from gofer.secrets.rotation import destroy_conversation_key
from gofer.store import events as log
from gofer.store.db_time import now
from gofer.store.encryption import key_body_digests
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    LIVE,
    JobState,
    attempts,
    bindings,
    blobs,
    conversations,
    deliveries,
    events,
    goals,
    heartbeat_findings,
    in_state,
    jobs,
    messages,
    participants,
    questions,
    schedules,
    shells,
    tasks,
)
from gofer.vault.envelope import Vault

MIRRORS = "mirrors"
"""The folder of the data directory in which repositories are kept between jobs."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed."""

    conversation_id: str
    messages: int
    deliveries: int
    blobs: int
    jobs_ended: int


def purge_conversation(connection: Connection, vault: Vault, *, conversation_id: str, by: str) -> Purged:
    """Destroy what was said in a conversation. Counts and ids stay, words do not; doing it again is no error.

    Its place outside is let go, so the next message there begins a new conversation.
    """
    lock_conversation(connection, conversation_id)
    found = connection.execute(
        select(conversations.c.workspace_id).where(conversations.c.id == conversation_id)
    ).one_or_none()
    if found is None:
        raise NotFound(
            f"There is no conversation {conversation_id!r}. `gofer conversations list` shows those there are."
        )
    ended = _end_jobs(connection, conversation_id)
    destroy_conversation_key(connection, vault, conversation_id)
    purged = Purged(
        conversation_id,
        messages=_empty(connection, messages, conversation_id, author="", external_id=""),
        deliveries=_empty(connection, deliveries, conversation_id),
        blobs=connection.execute(delete(blobs).where(blobs.c.conversation_id == conversation_id)).rowcount,
        jobs_ended=ended,
    )
    key_body_digests(connection, vault, deliveries.c.conversation_id == conversation_id)
    _forget_signatures(connection, conversation_id)
    _empty(connection, events, conversation_id)
    _empty(connection, questions, conversation_id, answer=None)
    _end_goals(connection, conversation_id)
    empty_scope(connection, conversation_scope(conversation_id))
    # With the binding go the replies in its ledger.
    connection.execute(delete(bindings).where(bindings.c.conversation_id == conversation_id))
    _remove_schedules(connection, conversation_id)
    here = heartbeat_findings.c.conversation_id == conversation_id
    connection.execute(delete(heartbeat_findings).where(here))
    connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(title=""))
    log.record(
        connection, "conversation.purged", found.workspace_id, conversation_id=conversation_id,
        data={"by": by, "messages": purged.messages, "blobs": purged.blobs},
    )  # fmt: skip
    return purged


def _end_jobs(connection: Connection, conversation_id: str) -> int:
    """End what is under way. The grown fence turns away every write of a run that does not know yet."""
    connection.execute(
        update(participants)
        .where(participants.c.conversation_id == conversation_id)
        .values(read_seq=participants.c.wake_seq, summary=None)
    )
    # Whoever tidies shells ends those that no row refers to.
    connection.execute(delete(shells).where(shells.c.conversation_id == conversation_id))
    connection.execute(
        update(questions)
        .where(questions.c.conversation_id == conversation_id, questions.c.answered_at.is_(None))
        .values(answered_at=now())
    )
    under_way = (jobs.c.conversation_id == conversation_id) & in_state(*LIVE, JobState.BLOCKED)
    connection.execute(
        update(attempts)
        .where(attempts.c.job_id.in_(select(jobs.c.id).where(under_way)), attempts.c.ended_at.is_(None))
        .values(ended_at=now(), outcome="cancelled", reason="purged")
    )
    return connection.execute(
        update(jobs)
        .where(under_way)
        .values(
            state=JobState.CANCELLED,
            reason="purged",
            owner=None,
            lease_until=None,
            fence=jobs.c.fence + 1,
            finished_at=now(),
        )
    ).rowcount


def _end_goals(connection: Connection, conversation_id: str) -> None:
    """End the goals and tasks of a conversation, and destroy what they say."""
    for table, state in ((tasks, "dropped"), (goals, "cancelled")):
        unfinished = (table.c.conversation_id == conversation_id) & table.c.finished_at.is_(None)
        ended = {"state": state, "reason": "purged", "finished_at": now()}
        connection.execute(update(table).where(unfinished).values(**ended))
        _empty(connection, table, conversation_id)
    of_it = tasks.c.conversation_id == conversation_id
    connection.execute(update(tasks).where(of_it).values(result=None))


def _empty(connection: Connection, table: Table, conversation_id: str, **also: object) -> int:
    """Take the sealed content out of every row of the conversation."""
    columns = table.c
    return connection.execute(
        update(table)
        .where(columns.conversation_id == conversation_id, columns.sealed.is_not(None))
        .values(sealed=None, **also)
    ).rowcount


def _remove_schedules(connection: Connection, conversation_id: str) -> None:
    """Remove the schedules that write into a conversation."""
    rows = connection.execute(select(schedules.c.id, schedules.c.payload).where(schedules.c.kind == SAY))
    ids = [row.id for row in rows if row.payload.get("conversation_id") == conversation_id]
    connection.execute(delete(schedules).where(schedules.c.id.in_(ids)))


def _forget_signatures(connection: Connection, conversation_id: str) -> None:
    """Take the hashes of tool calls and results out of the events of a release that did not seal them."""
    of_tools = (events.c.conversation_id == conversation_id) & (events.c.kind == "tool.finished")
    for row in connection.execute(select(events.c.id, events.c.data).where(of_tools)).all():
        kept = {name: value for name, value in row.data.items() if name not in ("call_sig", "result_sig")}
        if kept != row.data:
            connection.execute(update(events).where(events.c.id == row.id).values(data=kept))


def remove_shell_files(folder: Path, conversation_id: str) -> int:
    """Remove what the conversation's shells have on this machine's disk; returns how many there were."""
    found = list(folder.glob(f"{conversation_id}-*"))
    for directory in found:
        shutil.rmtree(directory, ignore_errors=True)
    return len(found)


def remove_mirrors(data_dir: Path, connection_id: str) -> None:
    """Remove what is kept on this machine of the repositories of a connection that is gone."""
    shutil.rmtree(data_dir / MIRRORS / connection_id, ignore_errors=True)


def purged_conversations(connection: Connection) -> list[str]:
    """Those whose content is destroyed; a machine that was away may still have files of theirs."""
    query = select(conversations.c.id).where(conversations.c.purged_at.is_not(None))
    return list(connection.execute(query).scalars())
