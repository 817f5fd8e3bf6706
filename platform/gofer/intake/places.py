"""Places that may lose their name, and names that may come to mean another place.

A binding is found by what its place is called. Where a service also says what it is for ever, a conversation goes
with that: it follows its place to another name, and whoever gets the old name begins anew.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from gofer.integration import Incoming
from gofer.store import events as log
from gofer.store import hot
from gofer.store.tables import bindings, connections


def is_settled(connection: Connection, connection_id: str, message: Incoming) -> bool:
    """Whether the name still means the place that it meant, or the place has nothing but its name."""
    if not message.lasting:
        return True
    here = {"via": connection_id, "at": message.conversation}
    return bool(hot.scalar(connection, _LASTING, here) == message.lasting)


_LASTING = select(bindings.c.lasting).where(
    bindings.c.connection_id == bindparam("via"), bindings.c.ref == bindparam("at")
)


def settle(connection: Connection, workspace_id: str, connection_id: str, message: Incoming) -> None:
    """Have the name mean this place, and no other."""
    _lock(connection, connection_id)
    if is_settled(connection, connection_id, message):
        return  # by another message, while we waited
    of_connection = bindings.c.connection_id == connection_id
    named = connection.execute(
        select(bindings).where(of_connection, bindings.c.ref == message.conversation)
    ).first()
    if named is not None and named.lasting is None:
        # From before places were known by more than their name.
        known = update(bindings).where(bindings.c.id == named.id, bindings.c.lasting.is_(None))
        connection.execute(known.values(lasting=message.lasting))
        return
    if named is not None:
        _call(connection, workspace_id, named, f"{named.ref} (was {named.lasting})")
    known_as = select(bindings).where(of_connection, bindings.c.lasting == message.lasting)
    if (moved := connection.execute(known_as.order_by(bindings.c.id)).first()) is not None:
        _call(connection, workspace_id, moved, message.conversation)


def move_within(connection: Connection, workspace_id: str, connection_id: str, old: str, new: str) -> None:
    """Have the places within one that moved go with it, where nobody is in their way."""
    _lock(connection, connection_id)
    of_connection = bindings.c.connection_id == connection_id
    below = select(bindings).where(of_connection, bindings.c.ref.startswith(f"{old}#", autoescape=True))
    for binding in connection.execute(below).all():
        ref = new + binding.ref.removeprefix(old)
        if (
            connection.execute(select(bindings.c.id).where(of_connection, bindings.c.ref == ref)).first()
            is None
        ):
            _call(connection, workspace_id, binding, ref)


def _lock(connection: Connection, connection_id: str) -> None:
    """Give names one after another within a connection. Who found neither the name nor the place because somebody
    was just moving it would begin the conversation anew."""
    connection.execute(
        select(connections.c.id).where(connections.c.id == connection_id).with_for_update(key_share=True)
    )


def _call(connection: Connection, workspace_id: str, binding: Row[Any], ref: str) -> None:
    """Give a binding another name, unless somebody did in the same instant."""
    still = (bindings.c.id == binding.id, bindings.c.ref == binding.ref)
    if connection.execute(update(bindings).where(*still).values(ref=ref)).rowcount:
        log.record(
            connection, "conversation.moved", workspace_id, conversation_id=binding.conversation_id,
            data={"connection": binding.connection_id, "from": binding.ref, "to": ref},
        )  # fmt: skip
