"""The inbox: what came in, what became of it, what was refused; taking it in again, or something like it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.intake.routing import event_matches
from gofer.jobs.kinds import ANSWER
from gofer.store.tables import jobs, routes
from gofer.vault.envelope import Vault
from gofer.web.auth import record_reading, visitor_of
from gofer.web.dashboard.endpoints import PER_PAGE, form_of, page, query_number, text_of
from gofer.web.dashboard.render import platform_of, redirect, refused_of, render
from gofer.web.queries import agent_names, connection_names, rows
from gofer.web.queries.deliveries import list_deliveries, read_delivery, replay, replay_delivery
from gofer.web.titles import with_titles

MAX_BODY_SHOWN = 200_000
MAX_SIMULATED = 1_000_000


@page("viewer")
async def index(request: Request) -> Response:
    """The list, and the refusals since the start."""
    platform = platform_of(request)
    wanted = request.query_params.get("connection", "")
    before = query_number(request, "before")
    names = await platform.database.read(connection_names)
    listed = await platform.database.read(
        list_deliveries, connection_id=wanted, before=before, limit=PER_PAGE, titles=True
    )
    listed = await with_titles(platform, listed, visitor_of(request))
    more = listed[-1]["id"] if len(listed) == PER_PAGE else None
    refusals = [
        {"at": each.at, "connection": each.connection, "status": each.status, "reason": each.reason,
         "client": each.client}
        for each in reversed(platform.refusals.recent)
    ]  # fmt: skip
    return render(
        request,
        "inbox.html",
        deliveries=listed,
        connections=names,
        wanted=wanted,
        more=more,
        refusals=refusals[:20],
    )


@page("viewer")
async def show(request: Request) -> Response:
    """One, as it was kept."""
    platform = platform_of(request)
    found = await platform.database.read(_read, vault=platform.vault, delivery_id=request.path_params["id"])
    delivery = found["delivery"]
    await record_reading(request, delivery["conversation_id"], f"delivery {delivery['id']}")
    return render(request, "delivery.html", **found)


def _read(connection: Connection, vault: Vault, delivery_id: int) -> dict[str, Any]:
    """Everything on the page."""
    delivery, content = read_delivery(connection, vault, delivery_id)
    agents = agent_names(connection)
    return {
        "delivery": delivery,
        "headers": [] if content is None else [{"name": name, "value": value} for name, value in content[0]],
        "body": None if content is None else _pretty(content[1]),
        "size": None if content is None else len(content[1]),
        "jobs": _jobs(connection, delivery),
        "heard_by": [agents.get(each, each) for each in _routed(connection, delivery)],
        "agents": agents,
        "connections": connection_names(connection),
    }


def _pretty(body: bytes) -> str:
    text = body[:MAX_BODY_SHOWN].decode("utf-8", errors="replace")
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text


def _jobs(connection: Connection, delivery: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that cover its message."""
    conversation_id, seq = delivery["conversation_id"], delivery["message_seq"]
    if conversation_id is None or seq is None:
        return []
    covers = (jobs.c.covers_from < seq) & (jobs.c.covers_to.is_(None) | (jobs.c.covers_to >= seq))
    query = select(jobs.c.id, jobs.c.state, jobs.c.reason, jobs.c.agent_id, jobs.c.created_at)
    query = query.where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER, covers)
    return rows(connection, query.order_by(jobs.c.id.desc()).limit(10))


def _routed(connection: Connection, delivery: dict[str, Any]) -> list[str]:
    """The agents that hear such an event now."""
    here = routes.c.connection_id.is_(None) | (routes.c.connection_id == delivery["connection_id"])
    query = select(routes.c.agent_id, routes.c.event).where(here)
    return sorted(
        {agent for agent, event in connection.execute(query) if event_matches(event, delivery["event"])}
    )


@page("operator")
async def redeliver(request: Request) -> Response:
    """Take a stored delivery in again, as a new one."""
    return _taken(await replay_delivery(platform_of(request), request.path_params["id"], again=True))


@page("operator")
async def simulation(request: Request) -> Response:
    """A form to send something like a delivery, filled in from one."""
    platform = platform_of(request)
    names = await platform.database.read(connection_names)
    chosen = query_number(request, "like")
    wanted, headers, body = request.query_params.get("connection", ""), "", ""
    if chosen is not None:
        delivery, content = await platform.database.read(
            read_delivery, vault=platform.vault, delivery_id=chosen
        )
        await record_reading(request, delivery["conversation_id"], f"delivery {delivery['id']}")
        wanted = delivery["connection_id"]
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
    if len(body) > MAX_SIMULATED:
        raise Malformed(f"The payload may have {MAX_SIMULATED} bytes at most.")
    pairs = [line.partition(":") for line in text_of(form, "headers").splitlines() if line.strip()]
    headers = [(name.strip(), value.strip()) for name, _, value in pairs]
    connection_id = text_of(form, "connection")
    return _taken(await replay(platform_of(request), connection_id, headers, body, again=True))


def _taken(taken: Any) -> Response:
    if taken.delivery_id is None:
        return redirect("/inbox", f"It was read, and nothing came of it ({taken.result}).", "warn")
    return redirect(f"/inbox/{taken.delivery_id}", "Taken in as a new delivery.")
