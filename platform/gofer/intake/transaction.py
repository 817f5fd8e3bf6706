"""The one transaction of intake: lock first, read after, and everything or nothing.

Deciding in a single statement whether a job is needed reads the world as it was before the lock: a message that
arrives while the previous job ends would be stored with nobody left to answer it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import structlog
from sqlalchemy import Boolean, Connection, Row, and_, bindparam, case, insert, select, update

from gofer.crash import crash_point
from gofer.intake.albums import join_album, late_edit
from gofer.intake.arrival import Arrival, Taken
from gofer.intake.routing import wake
from gofer.integration import Incoming
from gofer.jobs.control import redrive, set_closed
from gofer.secrets.rotation import connection_key, new_conversation_key
from gofer.store import events as log
from gofer.store import fast_sql, json_text, row_macs
from gofer.store.db_time import now
from gofer.store.encryption import data_key
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.messages import binding_at, column_text, seal_message
from gofer.store.tables import (
    JobState,
    Trust,
    bindings,
    connections,
    conversations,
    deliveries,
    jobs,
    messages,
    participants,
)
from gofer.vault.envelope import DataKey, Vault, aad


def take_in(connection: Connection, vault: Vault, arrival: Arrival) -> Taken:
    """Record a delivery, its message and the jobs it asks for."""
    message = arrival.parsed.message
    if message is None:
        return _keep_notice(connection, vault, arrival)
    if not is_current_name(connection, arrival.connection_id, message):
        if (repeat := _repeat(connection, arrival)) is not None:
            return repeat  # what came before speaks of names as they were then
        update_name(connection, arrival.workspace_id, arrival.connection_id, message)
    while (place := _place(connection, vault, arrival, message)) is None:
        # The name came to mean another place in this very instant.
        update_name(connection, arrival.workspace_id, arrival.connection_id, message)
    conversation_id = place.id
    looks_back = arrival.same_body_window or arrival.message_digest is not None
    if looks_back and (repeat := _repeat(connection, arrival)) is not None:
        _give_back_seq(connection, conversation_id)
        return repeat
    key = data_key(vault, conversation_id, place.data_key)
    replaced, message = _in_place(connection, key, conversation_id, message)
    seq = replaced or place.last_seq
    delivery_id = _keep(connection, arrival, key, conversation_id, seq)
    if delivery_id is None or replaced is not None:
        _give_back_seq(connection, conversation_id)
    if delivery_id is None:
        return _repeat(connection, arrival) or arrival.taken("repeat")
    _write_message(connection, key, conversation_id, seq, arrival, message, replace=replaced is not None)
    closed = place.closed_at is not None
    woke = wake(connection, arrival, message, conversation_id, seq, closed=closed)
    log.record(
        connection, "delivery.accepted", arrival.workspace_id, conversation_id=conversation_id,
        delivery_id=delivery_id,
        data={"connection": arrival.connection_id, "event": arrival.parsed.event, "source": arrival.source,
              "seq": seq, "addressed": message.addressed},
    )  # fmt: skip
    crash_point("intake.recorded")
    return arrival.taken("accepted", delivery_id, conversation_id, seq, woke=woke)


def _keep_notice(connection: Connection, vault: Vault, arrival: Arrival) -> Taken:
    """Store a delivery without a message, so that the inbox shows it and a repeat is recognised."""
    if (repeat := _repeat(connection, arrival)) is not None:
        return repeat
    key = connection_key(connection, vault, arrival.connection_id)
    delivery_id = _keep(connection, arrival, key, None, None)
    if delivery_id is not None and arrival.parsed.moved is not None:
        _rename(connection, arrival, *arrival.parsed.moved)
    woke = False
    if delivery_id is not None and arrival.parsed.closed is not None:
        woke = _close(connection, arrival, *arrival.parsed.closed)
    return arrival.taken("noted" if delivery_id is not None else "repeat", delivery_id, woke=woke)


def _place(connection: Connection, vault: Vault, arrival: Arrival, message: Incoming) -> Any:
    """The conversation of a place outside, made when it is new, and locked by taking its next number.

    None when the name belongs to another place by now.
    """
    # A schedule or a press speaks into a place; it is not the service that says who reads it.
    told = None if arrival.source in ("schedule", "button") else message.private
    place = {"via": arrival.connection_id, "at": message.conversation, "told": told}
    take = _TAKE_SEQ
    if message.stable_id:
        take, place["lasting"] = _TAKE_SEQ_BY_STABLE_ID, message.stable_id
    found = fast_sql.first(connection, take, place)
    if found is None:
        _make_conversation(connection, vault, arrival, message)
        found = fast_sql.first(connection, take, place)
    return found


_TAKE_SEQ = (
    update(conversations)
    .where(bindings.c.conversation_id == conversations.c.id)
    .where(bindings.c.connection_id == bindparam("via"), bindings.c.ref == bindparam("at"))
    .values(
        last_seq=conversations.c.last_seq + 1,
        # What others could read once stays open to them: a place never becomes private again.
        private=case(
            (bindparam("told", type_=Boolean).is_(None), conversations.c.private),
            (conversations.c.private.is_(None), bindparam("told", type_=Boolean)),
            else_=and_(conversations.c.private, bindparam("told", type_=Boolean)),
        ),
    )
    .returning(*(conversations.c[name] for name in ("id", "data_key", "last_seq", "closed_at")))
)
_TAKE_SEQ_BY_STABLE_ID = _TAKE_SEQ.where(bindings.c.lasting == bindparam("lasting"))


def _give_back_seq(connection: Connection, conversation_id: str) -> None:
    """Return the number when there is no new message. Nobody has seen it: the row is locked."""
    fast_sql.fetch(connection, _GIVE_BACK_SEQ, {"conversation": conversation_id})


_GIVE_BACK_SEQ = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"))
    .values(last_seq=conversations.c.last_seq - 1)
)


def _make_conversation(connection: Connection, vault: Vault, arrival: Arrival, message: Incoming) -> None:
    conversation_id = new_id("conv")
    connection.execute(
        insert(conversations).values(
            id=conversation_id,
            workspace_id=arrival.workspace_id,
            kind=message.kind,
            title=column_text(message.title),
            data_key=new_conversation_key(connection, vault, conversation_id),
            last_seq=0,
            created_at=now(),
        )
    )
    made = connection.execute(
        fast_sql.upsert(connection.dialect.name, bindings)
        .values(
            id=new_id("bind"),
            conversation_id=conversation_id,
            connection_id=arrival.connection_id,
            ref=message.conversation,
            **({"lasting": message.stable_id} if message.stable_id else {}),
        )
        .on_conflict_do_nothing(index_elements=["connection_id", "ref"])
        .returning(bindings.c.id)
    ).first()
    if made is None:
        # Another request made it in the same instant: ours goes, theirs is visible now.
        connection.execute(conversations.delete().where(conversations.c.id == conversation_id))


def _repeat(connection: Connection, arrival: Arrival) -> Taken | None:
    """What to answer if this delivery came before; a repeat whose job died runs that job again."""
    earlier = fast_sql.first(
        connection, _SAME_ID, {"via": arrival.connection_id, "given": arrival.parsed.delivery_id}
    )
    if earlier is not None and _differs(arrival, earlier):
        structlog.get_logger().warning(
            "delivery.another_body",
            connection=arrival.connection_id,
            delivery=earlier.id,
            external_id=arrival.parsed.delivery_id,
            meaning="a genuine request came under the id of an earlier one that says something else; it was not taken",
        )
    if earlier is None and arrival.message_digest is not None:
        earlier = fast_sql.first(
            connection, _SAME_MESSAGE, {"via": arrival.connection_id, "digest": arrival.message_digest}
        )
    if earlier is None and arrival.same_body_window:
        earlier = fast_sql.first(
            connection,
            _SAME_BODY,
            {"via": arrival.connection_id, "hash": arrival.body_hash, "within": arrival.same_body_window},
        )
    if earlier is None:
        return None
    dead = _dead_jobs(connection, earlier.conversation_id, earlier.message_seq)
    if not dead:
        return arrival.taken("repeat", earlier.id, earlier.conversation_id, earlier.message_seq)
    for job_id in dead:
        redrive(connection, job_id, by=f"delivery:{arrival.parsed.delivery_id}")
        log.record(
            connection, "delivery.redriven", arrival.workspace_id, conversation_id=earlier.conversation_id,
            delivery_id=earlier.id, data={"job": job_id},
        )  # fmt: skip
    return arrival.taken("redriven", earlier.id, earlier.conversation_id, earlier.message_seq, woke=True)


def _differs(arrival: Arrival, earlier: Any) -> bool:
    """Whether a delivery differs from the earlier one with the same id.

    A service may write the same delivery in other bytes when it is fetched later, so bytes are compared only between
    two webhooks.
    """
    if arrival.message_digest is not None and earlier.message_digest is not None:
        return bool(arrival.message_digest != earlier.message_digest)
    same_way = arrival.source == earlier.source == "webhook"
    return same_way and bool(arrival.body_hash != earlier.body_hash)


_EARLIER = (
    deliveries.c.id,
    deliveries.c.conversation_id,
    deliveries.c.message_seq,
    deliveries.c.message_digest,
    deliveries.c.body_hash,
    deliveries.c.source,
)
_SAME_ID = select(*_EARLIER).where(
    deliveries.c.connection_id == bindparam("via"), deliveries.c.external_id == bindparam("given")
)
_SAME_MESSAGE = select(*_EARLIER).where(
    deliveries.c.connection_id == bindparam("via"), deliveries.c.message_digest == bindparam("digest")
)
_SAME_BODY = (
    select(*_EARLIER)
    .where(deliveries.c.connection_id == bindparam("via"), deliveries.c.body_hash == bindparam("hash"))
    .where(deliveries.c.received_at > now() - bindparam("within"))
    .limit(1)
)


def _dead_jobs(connection: Connection, conversation_id: str | None, seq: int | None) -> list[int]:
    """Dead jobs that covered a message: the last job of each agent, if that is dead."""
    if conversation_id is None or seq is None:
        return []
    query = (
        select(jobs.c.participant_id, jobs.c.id, jobs.c.state)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.participant_id.is_not(None))
        .where(jobs.c.covers_from < seq, (jobs.c.covers_to >= seq) | jobs.c.covers_to.is_(None))
        .order_by(jobs.c.id)
    )
    last = {row.participant_id: row for row in connection.execute(query)}
    return [int(row.id) for row in last.values() if row.state == JobState.DEAD]


def _rename(connection: Connection, arrival: Arrival, old: str, new: str) -> None:
    """Keep a conversation whose place has another reference from now on."""
    if arrival.settings is not None:
        of_connection = connections.c.id == arrival.connection_id
        row_macs.update(connection, connections, of_connection, {"settings": dict(arrival.settings)})
    rename_below(connection, arrival.workspace_id, arrival.connection_id, old, new)
    binding = binding_at(connection, arrival.connection_id, old)
    if binding is None:
        return
    conversation_id = binding.conversation_id
    lock_conversation(connection, conversation_id)
    of_connection = bindings.c.connection_id == arrival.connection_id
    if binding_at(connection, arrival.connection_id, new) is None:
        moved = update(bindings).where(of_connection, bindings.c.ref == old).values(ref=new)
    else:
        # Somebody spoke there before the news came: from here on it is the old conversation that goes on there.
        moved = (
            update(bindings)
            .where(of_connection, bindings.c.ref == new)
            .values(conversation_id=conversation_id)
        )
    connection.execute(moved)
    log.record(
        connection, "conversation.moved", arrival.workspace_id, conversation_id=conversation_id,
        data={"connection": arrival.connection_id, "from": old, "to": new},
    )  # fmt: skip


def _close(connection: Connection, arrival: Arrival, ref: str, closed: bool) -> bool:
    """Keep that a place was closed at its service, or opened again; returns whether that wakes an agent."""
    binding = binding_at(connection, arrival.connection_id, ref)
    return binding is not None and set_closed(
        connection, binding.conversation_id, closed=closed, by=arrival.connection_id
    )


def _in_place(
    connection: Connection, key: DataKey, conversation_id: str, message: Incoming
) -> tuple[int | None, Incoming]:
    """The number and content of a message that is a part or a new version of another, which it replaces while unread.

    A new version of what was read is kept for context and wakes nobody: it was answered as it stood.
    """
    if message.group_id:
        return join_album(connection, key, conversation_id, message)
    if not message.replaces_id:
        return None, message
    earlier = connection.execute(
        _EARLIER_VERSION, {"conversation": conversation_id, "of": message.replaces_id}
    ).first()
    if earlier is None or (earlier.admitted_at is None and earlier.given_up):
        # Given up on without being read: what is said about it now is new.
        return None, message
    if earlier.admitted_at is None:
        return earlier.seq, message
    return None, late_edit(message, earlier.seq)


_EARLIER_VERSION = (
    select(
        messages.c.seq,
        messages.c.admitted_at,
        select(participants.c.id)
        .where(participants.c.conversation_id == bindparam("conversation"))
        .where(participants.c.read_seq >= messages.c.seq)
        .exists()
        .label("given_up"),
    )
    .where(messages.c.conversation_id == bindparam("conversation"), messages.c.external_id == bindparam("of"))
    .order_by(messages.c.seq.desc())
    .limit(1)
)


def _write_message(
    connection: Connection,
    key: DataKey,
    conversation_id: str,
    seq: int,
    arrival: Arrival,
    message: Incoming,
    *,
    replace: bool,
) -> None:
    sealed = seal_message(key, conversation_id, seq, message, arrival.trust, came_by=arrival.connection_id)
    if replace:
        connection.execute(
            update(messages)
            .where(messages.c.conversation_id == conversation_id, messages.c.seq == seq)
            .values(addressed=message.addressed),
            {"sealed": sealed},  # apart, or SQLAlchemy would remember it
        )
        return
    fast_sql.fetch(
        connection,
        _APPEND if arrival.trust is Trust.UNKNOWN else _APPEND_ADMITTED,
        {
            "conversation_id": conversation_id,
            "seq": seq,
            "author": column_text(message.author.id),
            "addressed": message.addressed,
            "event": message.event,
            "connection_id": arrival.connection_id,
            "external_id": column_text(message.external_id),
            "trust": arrival.trust,
            "sealed": sealed,
        },
    )


_APPEND = insert(messages).values(created_at=now(), admitted_at=None)
_APPEND_ADMITTED = insert(messages).values(created_at=now(), admitted_at=now())


def _keep(
    connection: Connection,
    arrival: Arrival,
    key: DataKey,
    conversation_id: str | None,
    seq: int | None,
) -> int | None:
    """Insert the delivery as received; None when it is there already."""
    external_id = arrival.parsed.delivery_id
    # Headers first as JSON on a line of their own, then the raw bytes, so that a replay is exact.
    place = aad("delivery", arrival.connection_id, external_id)
    sealed = key.seal(json_text.encode(arrival.headers) + b"\n" + arrival.body, place)
    row = fast_sql.first(
        connection,
        _insert_once(connection.dialect.name),
        {
            "workspace_id": arrival.workspace_id,
            "connection_id": arrival.connection_id,
            "external_id": external_id,
            "body_hash": arrival.body_hash,
            "source": arrival.source,
            "event": arrival.parsed.event,
            "note": arrival.parsed.note,
            "conversation_id": conversation_id,
            "message_seq": seq,
            "sealed": sealed,
            **({} if arrival.message_digest is None else {"message_digest": arrival.message_digest}),
        },
    )
    return int(row.id) if row else None


@cache
def _insert_once(dialect: str) -> Any:
    inserted = fast_sql.upsert(dialect, deliveries).values(received_at=now())
    return inserted.on_conflict_do_nothing().returning(deliveries.c.id)


def is_current_name(connection: Connection, connection_id: str, message: Incoming) -> bool:
    """Whether the reference still names the same place; a place without a stable id is known by its name alone."""
    if not message.stable_id:
        return True
    named = binding_at(connection, connection_id, message.conversation)
    return named is not None and bool(named.lasting == message.stable_id)


def update_name(connection: Connection, workspace_id: str, connection_id: str, message: Incoming) -> None:
    """Make the reference name this place and no other."""
    _lock(connection, connection_id)
    if is_current_name(connection, connection_id, message):
        return  # by another message, while we waited
    of_connection = bindings.c.connection_id == connection_id
    named = connection.execute(
        select(bindings).where(of_connection, bindings.c.ref == message.conversation)
    ).first()
    if named is not None and named.lasting is None:
        # From before places were known by more than their name.
        known = update(bindings).where(bindings.c.id == named.id, bindings.c.lasting.is_(None))
        connection.execute(known.values(lasting=message.stable_id))
        return
    if named is not None:
        _rename_binding(connection, workspace_id, named, f"{named.ref} (was {named.lasting})")
    known_as = select(bindings).where(of_connection, bindings.c.lasting == message.stable_id)
    if (moved := connection.execute(known_as.order_by(bindings.c.id)).first()) is not None:
        _rename_binding(connection, workspace_id, moved, message.conversation)


def rename_below(connection: Connection, workspace_id: str, connection_id: str, old: str, new: str) -> None:
    """Rename the places within a renamed one, unless the new name is taken."""
    _lock(connection, connection_id)
    of_connection = bindings.c.connection_id == connection_id
    below = select(bindings).where(of_connection, bindings.c.ref.startswith(f"{old}#", autoescape=True))
    for binding in connection.execute(below).all():
        ref = new + binding.ref.removeprefix(old)
        if binding_at(connection, connection_id, ref) is None:
            _rename_binding(connection, workspace_id, binding, ref)


def _lock(connection: Connection, connection_id: str) -> None:
    """Serialise renames within a connection. Otherwise a message that comes during a rename would find neither name,
    and begin a new conversation."""
    connection.execute(
        select(connections.c.id).where(connections.c.id == connection_id).with_for_update(key_share=True)
    )


def _rename_binding(connection: Connection, workspace_id: str, binding: Row[Any], ref: str) -> None:
    """Give a binding another reference, unless another transaction just did."""
    still = (bindings.c.id == binding.id, bindings.c.ref == binding.ref)
    if connection.execute(update(bindings).where(*still).values(ref=ref)).rowcount:
        log.record(
            connection, "conversation.moved", workspace_id, conversation_id=binding.conversation_id,
            data={"connection": binding.connection_id, "from": binding.ref, "to": ref},
        )  # fmt: skip
