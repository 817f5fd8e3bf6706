"""Deliveries: what came in, and taking it in again."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from pydantic import Field
from starlette.requests import Request

from gofer.errors import Malformed
from gofer.web.api.http import Paged, RequestModel, next_cursor, path_number, platform_of
from gofer.web.auth import record_reading
from gofer.web.queries import deliveries
from gofer.web.queries.deliveries import list_deliveries, read_delivery, replay_delivery


class DeliveryFilter(Paged):
    """Which deliveries to list, newest first."""

    connection: str = ""
    conversation: str = ""


BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class ReplayOptions(RequestModel):
    """How to process a delivery again."""

    again: bool = False
    """As a new one, although one with its id is there."""


class CapturedRequest(ReplayOptions):
    """A captured request."""

    headers: list[tuple[str, str]] = Field(default_factory=list, max_length=200)
    body: str = Field(description="In base64.", json_schema_extra={"pattern": BASE64})


async def index(request: Request, query: DeliveryFilter) -> dict[str, Any]:
    """List deliveries."""
    found = await platform_of(request).database.read(
        list_deliveries,
        connection_id=query.connection,
        conversation_id=query.conversation,
        before=query.before,
        limit=query.limit,
    )
    return {"deliveries": found, "next": next_cursor(found, query.limit)}


async def show(request: Request) -> dict[str, Any]:
    """Show a delivery with its headers and body."""
    platform = platform_of(request)
    delivery, content = await platform.database.read(
        read_delivery, vault=platform.vault, delivery_id=path_number(request)
    )
    await record_reading(request, delivery["conversation_id"], f"delivery {delivery['id']}")
    headers, body = content if content is not None else ([], None)
    text = body.decode("utf-8", errors="replace") if body is not None else None
    return {"delivery": delivery, "headers": headers, "body": text}


async def replay(request: Request, options: ReplayOptions) -> dict[str, Any]:
    """Process a stored delivery again."""
    taken = await replay_delivery(platform_of(request), path_number(request), again=options.again)
    return _taken(taken)


async def replay_given(request: Request, given: CapturedRequest) -> dict[str, Any]:
    """Process a captured request. An owner vouches for it instead of a signature."""
    try:
        body = base64.b64decode(given.body, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("body: must be base64.") from None
    taken = await deliveries.replay(
        platform_of(request), request.path_params["id"], given.headers, body, again=given.again
    )
    return _taken(taken)


def _taken(taken: Any) -> dict[str, Any]:
    shown = ("result", "delivery_id", "conversation_id", "seq")
    return {name: getattr(taken, name) for name in shown}
