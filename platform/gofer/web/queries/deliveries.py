"""Deliveries: what came in, and taking it in again."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, select

from gofer import integration
from gofer.app import Platform
from gofer.errors import Conflict, NotFound
from gofer.store.encryption import connection_place, conversation_key
from gofer.store.tables import SCHEDULE, connections, conversations, deliveries
from gofer.vault.envelope import Vault, aad
from gofer.web.queries import rows, without

Content = tuple[list[tuple[str, str]], bytes]
"""Headers and body."""


def list_deliveries(
    connection: Connection,
    *,
    connection_id: str = "",
    conversation_id: str = "",
    before: int | None = None,
    limit: int,
    titles: bool = False,
) -> list[dict[str, Any]]:
    """The newest first; with `titles` each with the title of its conversation."""
    query = select(*without(deliveries, "message_digest")).order_by(deliveries.c.id.desc()).limit(limit)
    if titles:
        query = query.add_columns(conversations.c.title).outerjoin(
            conversations, conversations.c.id == deliveries.c.conversation_id
        )
    if connection_id:
        query = query.where(deliveries.c.connection_id == connection_id)
    if conversation_id:
        query = query.where(deliveries.c.conversation_id == conversation_id)
    if before is not None:
        query = query.where(deliveries.c.id < before)
    return rows(connection, query)


def read_delivery(
    connection: Connection, vault: Vault, delivery_id: int
) -> tuple[dict[str, Any], Content | None]:
    """A delivery with its headers and body, which are None when they were not kept or are purged.

    Raises NotFound.
    """
    row = connection.execute(select(deliveries).where(deliveries.c.id == delivery_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no delivery {delivery_id}. `gofer deliveries list` shows those there are.")
    hidden = ("sealed", "message_digest")
    shown = {name: value for name, value in row._mapping.items() if name not in hidden}
    return shown, kept_content(connection, vault, row)


def kept_content(connection: Connection, vault: Vault, row: Any) -> Content | None:
    """The headers and body as they were kept; None when they were not, or are purged."""
    if row.sealed is None:
        return None
    if row.conversation_id is not None:
        key = conversation_key(connection, vault, row.conversation_id)
    else:  # what belongs to no conversation is sealed with its connection's key
        wrapped = select(connections.c.data_key).where(connections.c.id == row.connection_id)
        key = vault.unwrap(connection.execute(wrapped).scalar_one(), connection_place(row.connection_id))
    head, _, body = key.open(row.sealed, aad("delivery", row.connection_id, row.external_id)).partition(b"\n")
    return [(name, value) for name, value in json.loads(head)], body


async def replay(
    platform: Platform, connection_id: str, headers: list[tuple[str, str]], body: bytes, *, again: bool
) -> Any:
    """Take a request in without a signature; with `again` as a new one, although one with its id is there."""
    connected = await platform.accounts.get(connection_id)
    pairs = tuple((name.lower(), value.encode("latin-1", "replace")) for name, value in headers)
    return await platform.intake.take(connected, integration.Request(body, pairs), "replay", again=again)


async def replay_delivery(platform: Platform, delivery_id: int, *, again: bool) -> Any:
    """Take a stored delivery in again; raises Conflict when no service sent it or its content is not kept."""
    delivery, content = await platform.database.read(
        lambda connection: read_delivery(connection, platform.vault, delivery_id)
    )
    if delivery["event"] == SCHEDULE:
        raise Conflict(
            f"Delivery {delivery_id} was said by a schedule, and by no service. Run the schedule again."
        )
    if content is None:
        raise Conflict(f"The content of delivery {delivery_id} is not kept, so it cannot be taken in again.")
    return await replay(platform, delivery["connection_id"], *content, again=again)
