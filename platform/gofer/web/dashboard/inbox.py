"""The inbox: what came in, what became of it, what was refused; taking it in again, or something like it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer import integration
from gofer.errors import Malformed
from gofer.jobs.kinds import ANSWER
from gofer.store.tables import conversations, deliveries, jobs, routes
from gofer.vault.envelope import Vault
from gofer.web.api.deliveries import came, find_delivery, kept_content
from gofer.web.auth import words_read
from gofer.web.dashboard.endpoints import (
    PER_PAGE,
    agent_names,
    connection_names,
    form_of,
    number_of,
    page,
    rows,
    text_of,
)
from gofer.web.dashboard.render import go, platform_of, refused_of, render
from gofer.web.titles import with_titles

LONGEST_BODY = 200_000
MOST_SIMULATED = 1_000_000


@page("viewer")
async def index(request: Request) -> Response:
    """The list, and the refusals since the start."""
    platform = platform_of(request)
    wanted = request.query_params.get("connection", "")
    found = await platform.database.read(
        partial(read_list, wanted=wanted, before=number_of(request, "before"))
    )
    listed = found["deliveries"] = await with_titles(platform, found["deliveries"])
    more = listed[-1]["id"] if len(listed) == PER_PAGE else None
    refusals = [
        {"at": each.at, "connection": each.connection, "status": each.status, "reason": each.reason,
         "client": each.client}
        for each in reversed(platform.refusals.recent)
    ]  # fmt: skip
    return render(request, "inbox.html", **found, wanted=wanted, more=more, refusals=refusals[:20])


def read_list(connection: Connection, wanted: str, before: int | None) -> dict[str, Any]:
    """The newest first."""
    hidden = ("sealed", "body_hash", "message_digest")
    columns = [column for column in deliveries.columns if column.name not in hidden]
    query = (
        select(*columns, conversations.c.title)
        .outerjoin(conversations, conversations.c.id == deliveries.c.conversation_id)
        .order_by(deliveries.c.id.desc())
        .limit(PER_PAGE)
    )
    if wanted:
        query = query.where(deliveries.c.connection_id == wanted)
    if before is not None:
        query = query.where(deliveries.c.id < before)
    return {"deliveries": rows(connection, query), "connections": connection_names(connection)}


@page("viewer")
async def show(request: Request) -> Response:
    """One, as it was kept."""
    platform = platform_of(request)
    found = await platform.database.read(
        partial(read_one, vault=platform.vault, delivery_id=request.path_params["id"])
    )
    delivery = found["delivery"]
    await words_read(request, delivery["conversation_id"], f"delivery {delivery['id']}")
    return render(request, "delivery.html", **found)


def read_one(connection: Connection, vault: Vault, delivery_id: int) -> dict[str, Any]:
    """Everything on the page."""
    row = find_delivery(connection, delivery_id)
    content = kept_content(connection, vault, row)
    delivery = {name: value for name, value in row._mapping.items() if name != "sealed"}
    agents = agent_names(connection)
    return {
        "delivery": delivery,
        "headers": [] if content is None else [{"name": name, "value": value} for name, value in content[0]],
        "body": None if content is None else _pretty(content[1]),
        "size": None if content is None else len(content[1]),
        "jobs": _jobs(connection, row),
        "heard_by": [agents.get(each, each) for each in _routed(connection, row)],
        "agents": agents,
        "connections": connection_names(connection),
    }


def _pretty(body: bytes) -> str:
    text = body[:LONGEST_BODY].decode("utf-8", errors="replace")
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text


def _jobs(connection: Connection, row: Any) -> list[dict[str, Any]]:
    """The runs that cover its message."""
    if row.conversation_id is None or row.message_seq is None:
        return []
    query = (
        select(jobs.c.id, jobs.c.state, jobs.c.reason, jobs.c.agent_id, jobs.c.created_at)
        .where(
            jobs.c.conversation_id == row.conversation_id,
            jobs.c.kind == ANSWER,
            jobs.c.covers_from < row.message_seq,
            (jobs.c.covers_to.is_(None)) | (jobs.c.covers_to >= row.message_seq),
        )
        .order_by(jobs.c.id.desc())
        .limit(10)
    )
    return rows(connection, query)


def _routed(connection: Connection, row: Any) -> list[str]:
    """The agents that hear such an event now."""
    query = select(routes.c.agent_id, routes.c.event).where(
        routes.c.connection_id.is_(None) | (routes.c.connection_id == row.connection_id)
    )
    return sorted({agent for agent, event in connection.execute(query) if _hears(event, row.event)})


def _hears(pattern: str, event: str) -> bool:
    return event.startswith(pattern[:-1]) if pattern.endswith("*") else event == pattern


@page("operator")
async def redeliver(request: Request) -> Response:
    """Take a stored delivery in again, as a new one."""
    platform = platform_of(request)
    row, content = await platform.database.read(
        partial(_stored, vault=platform.vault, delivery_id=request.path_params["id"])
    )
    return await _take(request, row.connection_id, *came(row, content))


def _stored(connection: Connection, vault: Vault, delivery_id: int) -> tuple[Any, Any]:
    row = find_delivery(connection, delivery_id)
    return row, kept_content(connection, vault, row)


@page("operator")
async def simulation(request: Request) -> Response:
    """A form to send something like a delivery, filled in from one."""
    platform = platform_of(request)
    names = await platform.database.read(connection_names)
    chosen = number_of(request, "like")
    wanted, headers, body = request.query_params.get("connection", ""), "", ""
    if chosen is not None:
        row, content = await platform.database.read(
            partial(_stored, vault=platform.vault, delivery_id=chosen)
        )
        wanted = row.connection_id
        if content is not None:
            headers = "\n".join(f"{name}: {value}" for name, value in content[0])
            body = _pretty(content[1])
    filled = {"connection": wanted, "headers": headers, "body": body, **refused_of(request).typed}
    return render(request, "simulate.html", connections=names, filled=filled)


@page("operator", form=simulation)
async def simulate(request: Request) -> Response:
    """Take what the form says in, on the word of whoever is signed in instead of a signature."""
    form = await form_of(request)
    body = text_of(form, "body").encode()
    if not body.strip():
        raise Malformed("Paste a payload first.")
    if len(body) > MOST_SIMULATED:
        raise Malformed(f"The payload may have {MOST_SIMULATED} bytes at most.")
    pairs = [line.partition(":") for line in text_of(form, "headers").splitlines() if line.strip()]
    headers = [(name.strip(), value.strip()) for name, _, value in pairs]
    return await _take(request, text_of(form, "connection"), headers, body)


async def _take(
    request: Request, connection_id: str, headers: list[tuple[str, str]], body: bytes
) -> Response:
    platform = platform_of(request)
    connected = await platform.accounts.get(connection_id)
    received = integration.Request(
        body, tuple((name.lower(), value.encode("latin-1", "replace")) for name, value in headers)
    )
    taken = await platform.intake.take(connected, received, "replay", again=True)
    if taken.delivery_id is None:
        return go("/inbox", f"It was read, and nothing came of it ({taken.result}).", "warn")
    return go(f"/inbox/{taken.delivery_id}", "Taken in as a new delivery.")
