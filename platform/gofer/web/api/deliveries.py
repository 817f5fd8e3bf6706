"""Deliveries: what came in, and taking it in again."""

from __future__ import annotations

import base64
import binascii
import json
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer import integration
from gofer.errors import Conflict, Malformed, NotFound
from gofer.store.encryption import connection_place, conversation_key
from gofer.store.tables import SCHEDULE, connections, deliveries
from gofer.vault.envelope import DataKey, Vault, aad
from gofer.web.api.http import (
    Paged,
    RequestModel,
    answered,
    asked,
    next_of,
    number_in,
    platform_of,
    queried,
    rows,
    without,
)
from gofer.web.auth import words_read


class DeliveryFilter(Paged):
    """Which deliveries to list, newest first."""

    connection: str = ""
    conversation: str = ""


BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class ReplayOptions(RequestModel):
    """How to take a delivery in once more."""

    again: bool = False
    """As a new one, although one with its id is there."""


class CapturedRequest(ReplayOptions):
    """A captured request."""

    headers: list[tuple[str, str]] = Field(default_factory=list, max_length=200)
    body: str = Field(description="In base64.", json_schema_extra={"pattern": BASE64})


async def index(request: Request) -> Response:
    """List deliveries."""
    wanted = queried(request, DeliveryFilter)
    found = await platform_of(request).database.read(partial(_list, wanted=wanted))
    return answered(request, {"deliveries": found, "next": next_of(found, wanted.limit)})


def _list(connection: Connection, wanted: DeliveryFilter) -> list[dict[str, Any]]:
    query = (
        select(*without(deliveries, "message_digest")).order_by(deliveries.c.id.desc()).limit(wanted.limit)
    )
    if wanted.connection:
        query = query.where(deliveries.c.connection_id == wanted.connection)
    if wanted.conversation:
        query = query.where(deliveries.c.conversation_id == wanted.conversation)
    if wanted.before is not None:
        query = query.where(deliveries.c.id < wanted.before)
    return rows(connection, query)


async def show(request: Request) -> Response:
    """One delivery with what it said."""
    platform = platform_of(request)
    found = await platform.database.read(partial(_show, vault=platform.vault, delivery_id=number_in(request)))
    delivery = found["delivery"]
    await words_read(request, delivery["conversation_id"], f"delivery {delivery['id']}")
    return answered(request, found)


def _show(connection: Connection, vault: Vault, delivery_id: int) -> dict[str, Any]:
    row = find_delivery(connection, delivery_id)
    shown = {name: value for name, value in row._mapping.items() if name not in ("sealed", "message_digest")}
    content = kept_content(connection, vault, row)
    if content is None:
        return {"delivery": shown, "headers": [], "body": None}
    return {
        "delivery": shown,
        "headers": [list(pair) for pair in content[0]],
        "body": content[1].decode("utf-8", errors="replace"),
    }


def find_delivery(connection: Connection, delivery_id: int) -> Any:
    """A delivery by its number; raises NotFound."""
    row = connection.execute(select(deliveries).where(deliveries.c.id == delivery_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no delivery {delivery_id}. `gofer deliveries list` shows those there are.")
    return row


def kept_content(
    connection: Connection, vault: Vault, row: Any
) -> tuple[list[tuple[str, str]], bytes] | None:
    """The headers and body as they were kept; None when they were not, or are purged."""
    if row.sealed is None:
        return None
    key = _key_of(connection, vault, row)
    head, _, body = key.open(row.sealed, aad("delivery", row.connection_id, row.external_id)).partition(b"\n")
    return [(name, value) for name, value in json.loads(head)], body


def came(
    row: Any, content: tuple[list[tuple[str, str]], bytes] | None
) -> tuple[list[tuple[str, str]], bytes]:
    """What a service sent, to be taken in again; raises Conflict when there is none."""
    if row.event == SCHEDULE:
        raise Conflict(
            f"Delivery {row.id} was said by a schedule, and by no service. Run the schedule again."
        )
    if content is None:
        raise Conflict(f"The content of delivery {row.id} is not kept, so it cannot be taken in again.")
    return content


def _key_of(connection: Connection, vault: Vault, row: Any) -> DataKey:
    """What came in for a conversation is sealed with its key; the rest with its connection's."""
    if row.conversation_id is not None:
        return conversation_key(connection, vault, row.conversation_id)
    wrapped = select(connections.c.data_key).where(connections.c.id == row.connection_id)
    return vault.unwrap(connection.execute(wrapped).scalar_one(), connection_place(row.connection_id))


async def replay(request: Request) -> Response:
    """Take a stored delivery in again."""
    platform = platform_of(request)
    wish = await asked(request, ReplayOptions)
    row, content = await platform.database.read(
        partial(_stored, vault=platform.vault, delivery_id=number_in(request))
    )
    headers, body = came(row, content)
    return await _take(request, row.connection_id, headers, body, again=wish.again)


def _stored(
    connection: Connection, vault: Vault, delivery_id: int
) -> tuple[Any, tuple[list[tuple[str, str]], bytes] | None]:
    row = find_delivery(connection, delivery_id)
    return row, kept_content(connection, vault, row)


async def replay_given(request: Request) -> Response:
    """Take a captured request in, on the owner's word instead of a signature."""
    given = await asked(request, CapturedRequest)
    try:
        body = base64.b64decode(given.body, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("body: must be base64.") from None
    return await _take(request, request.path_params["id"], given.headers, body, again=given.again)


async def _take(
    request: Request, connection_id: str, headers: list[tuple[str, str]], body: bytes, *, again: bool
) -> Response:
    platform = platform_of(request)
    connected = await platform.accounts.get(connection_id)
    received = integration.Request(
        body, tuple((name.lower(), value.encode("latin-1", "replace")) for name, value in headers)
    )
    taken = await platform.intake.take(connected, received, "replay", again=again)
    return answered(
        request,
        {
            "result": taken.result,
            "delivery_id": taken.delivery_id,
            "conversation_id": taken.conversation_id,
            "seq": taken.seq,
        },
    )
