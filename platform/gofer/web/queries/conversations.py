"""Conversations and their messages."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Connection, func, select, tuple_

from gofer.app import Platform
from gofer.integration import Incoming
from gofer.jobs.notifications import JOBS
from gofer.memory import changes, records
from gofer.memory.scopes import conversation_scope
from gofer.purge import Purged, purge_conversation, remove_shell_files
from gofer.store.encryption import conversation_key, unseal
from gofer.store.messages import open_for_people
from gofer.store.tables import (
    ReplyState,
    bindings,
    conversations,
    jobs,
    messages,
    participants,
    replies,
)
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, no_conversation, open_to, readable
from gofer.web.queries import rows, without
from gofer.web.titles import BEGUN

_FIRST_BINDING = (
    select(func.min(bindings.c.id))
    .where(bindings.c.conversation_id == conversations.c.id)
    .correlate(conversations)
    .scalar_subquery()
)
_CONVERSATIONS = (
    select(*without(conversations, "pruned_replies"), bindings.c.connection_id, bindings.c.ref)
    .select_from(conversations)
    .outerjoin(bindings, bindings.c.id == _FIRST_BINDING)
    .order_by(conversations.c.created_at.desc(), conversations.c.id.desc())
)
"""Each once, with where it is held, the newest first."""


def _held_at(connection_id: str) -> Any:
    held = bindings.c.connection_id == connection_id
    return conversations.c.id.in_(select(bindings.c.conversation_id).where(held))


def list_conversations(
    connection: Connection,
    *,
    visitor: Visitor | None = None,
    connection_id: str = "",
    cursor: str = "",
    limit: int,
) -> list[dict[str, Any]]:
    """Those in which something was said that somebody may read, the newest first, from after the conversation `cursor`
    on."""
    query = _CONVERSATIONS.where(BEGUN, readable(connection, visitor)).limit(limit)
    if connection_id:
        query = query.where(_held_at(connection_id))
    if cursor:
        last = find_conversation(connection, cursor, visitor)
        place = tuple_(conversations.c.created_at, conversations.c.id)
        query = query.where(place < tuple_(last["created_at"], last["id"]))
    return rows(connection, query)


def list_by_activity(
    connection: Connection,
    *,
    visitor: Visitor | None = None,
    connection_id: str = "",
    before: int | None = None,
    limit: int,
) -> list[dict[str, Any]]:
    """Those that somebody may read with the newest job first, each with it as `last_job`; those without a job come
    last, on the first page."""
    last = func.max(jobs.c.id)
    newest = (
        select(jobs.c.conversation_id, last)
        .where(jobs.c.conversation_id.is_not(None), open_to(connection, visitor, jobs.c.conversation_id))
        .group_by(jobs.c.conversation_id)
        .order_by(last.desc())
        .limit(limit)
    )
    if connection_id:
        newest = newest.join(bindings, bindings.c.conversation_id == jobs.c.conversation_id)
        newest = newest.where(bindings.c.connection_id == connection_id)
    if before is not None:
        newest = newest.having(last < before)
    last_jobs = {conversation: int(job) for conversation, job in connection.execute(newest)}
    query = _CONVERSATIONS.add_columns(messages.c.created_at.label("said_at")).outerjoin(
        messages,
        (messages.c.conversation_id == conversations.c.id) & (messages.c.seq == conversations.c.last_seq),
    )
    found = {row["id"]: row for row in rows(connection, query.where(conversations.c.id.in_(last_jobs)))}
    listed = [{**found[each], "last_job": job} for each, job in last_jobs.items() if each in found]
    if before is None and len(listed) < limit:
        idle = BEGUN & ~select(jobs.c.id).where(jobs.c.conversation_id == conversations.c.id).exists()
        query = query.where(
            idle, readable(connection, visitor), *([_held_at(connection_id)] if connection_id else [])
        ).limit(limit)
        listed += [{**row, "last_job": None} for row in rows(connection, query)]
    return listed[:limit]


def find_conversation(
    connection: Connection, conversation_id: str, visitor: Visitor | None = None
) -> dict[str, Any]:
    """A conversation with where it is held; raises NotFound, also for one that somebody may not read."""
    query = _CONVERSATIONS.where(conversations.c.id == conversation_id)
    found = rows(connection, query.where(readable(connection, visitor)))
    if not found:
        raise no_conversation(conversation_id)
    return found[0]


def list_rules(connection: Connection, vault: Vault, conversation_id: str) -> list[dict[str, Any]]:
    """The standing rules of a conversation, oldest first; those that were revoked as well."""
    if find_conversation(connection, conversation_id)["purged_at"] is not None:
        return []
    scope_id = conversation_scope(conversation_id)
    found = [
        rule
        for state in (records.LIVE, records.FORGOTTEN)
        for rule in records.in_force(connection, vault, scope_id, kind="rule", state=state)
    ]
    epochs = select(func.min(participants.c.epoch_seq)).where(
        participants.c.conversation_id == conversation_id
    )
    epoch = connection.execute(epochs).scalar() or 0
    found.sort(key=lambda rule: (rule.source.message_seq or 0, rule.id))
    return [_rule(rule, epoch) for rule in found]


def change_rule(
    connection: Connection, vault: Vault, conversation_id: str, memory_id: str, *, revoke: bool, by: str
) -> list[dict[str, Any]]:
    """Revoke a standing rule, or restore one that was revoked; returns the rules. Raises NotFound for an id that is no
    rule of this conversation, Conflict for one that is in force already."""
    scopes = (conversation_scope(conversation_id),)
    if memory_id not in {rule["id"] for rule in list_rules(connection, vault, conversation_id)}:
        raise records.UnknownMemory(f"This conversation has no rule {memory_id[:60]!r}.")
    if revoke:
        changes.forget(connection, vault, memory_id, scopes=scopes, by=by)
    else:
        changes.restore(connection, vault, memory_id, scopes=scopes)
    return list_rules(connection, vault, conversation_id)


def _rule(rule: records.Memory, epoch: int) -> dict[str, Any]:
    """A rule for people. `epoch` is the number of the last message that no agent here has in mind any more."""
    seq = rule.source.message_seq
    return {
        "id": rule.id,
        "text": rule.text,
        "author": rule.author,
        "trust": rule.trust,
        "message_seq": seq,
        "revoked": rule.state == records.FORGOTTEN,
        "ended": seq is not None and seq <= epoch,
        "version": rule.version,
        "since": rule.valid_from,
    }


def read_messages(
    connection: Connection,
    vault: Vault,
    conversation: dict[str, Any],
    *,
    before: int | None,
    limit: int,
    after: int | None = None,
) -> list[tuple[Any, Incoming | None]]:
    """A conversation's messages with their content, which is None when purged and says so when damaged; the newest
    first, or those after a number in their order."""
    purged = conversation["purged_at"] is not None
    key = None if purged else conversation_key(connection, vault, conversation["id"])
    query = select(messages).where(messages.c.conversation_id == conversation["id"])
    if before is not None:
        query = query.where(messages.c.seq < before)
    order = messages.c.seq.desc()
    if after is not None:
        query, order = query.where(messages.c.seq > after), messages.c.seq.asc()
    found = connection.execute(query.order_by(order).limit(limit)).all()
    return [(row, None if key is None or row.sealed is None else open_for_people(key, row)) for row in found]


def read_notes(
    connection: Connection,
    vault: Vault,
    conversation: dict[str, Any],
    *,
    first: int,
    last: int | None,
    limit: int,
) -> list[dict[str, Any]]:
    """What Gofer itself said there, which is no message: answers to commands, and what became of a change. Each has
    the number of the message that it follows, from `first` to `last`; the newest come first."""
    if conversation["purged_at"] is not None:
        return []
    before = messages.c.created_at <= replies.c.created_at
    follows = (
        select(func.coalesce(func.max(messages.c.seq), 0))
        .where(messages.c.conversation_id == replies.c.conversation_id, before)
        .correlate(replies)
        .scalar_subquery()
    )
    query = (
        select(replies, follows.label("follows"))
        .join(bindings, bindings.c.id == replies.c.binding_id)
        .join(jobs, jobs.c.id == replies.c.job_id)
        .where(replies.c.conversation_id == conversation["id"], replies.c.sealed.is_not(None))
        .where(bindings.c.conversation_id == conversation["id"], jobs.c.agent_id.is_(None))
        .where(replies.c.state == ReplyState.SENT, follows >= first)
    )
    if last is not None:
        query = query.where(follows <= last)
    key = conversation_key(connection, vault, conversation["id"])
    found = connection.execute(query.order_by(replies.c.id.desc()).limit(limit)).all()
    return [
        {
            "reply": row.id,
            "seq": row.follows,
            "text": unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part)["text"],
            "created_at": row.created_at,
        }
        for row in found
    ]


async def purge(platform: Platform, conversation_id: str, *, by: str) -> Purged:
    """Destroy what was said in a conversation, everywhere."""
    purged = await platform.database.write(
        purge_conversation, vault=platform.vault, conversation_id=conversation_id, by=by
    )
    platform.signals.wake(JOBS)  # what runs there is stopped now, and not when its lease is renewed
    await asyncio.to_thread(remove_shell_files, platform.settings.data_dir / "shells", conversation_id)
    return purged
