"""One run: what woke it, what it did, said, cost and sent; live while it lasts."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.app import Platform
from gofer.jobs.control import find_job
from gofer.jobs.wait_reasons import clock_time, why
from gofer.runs.spend import cost_of_job
from gofer.store.encryption import conversation_key
from gofer.store.messages import open_message
from gofer.store.tables import FINAL, conversations, deliveries, events, messages
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.web.auth import Visitor, record_reading, visitor_of
from gofer.web.dashboard.endpoints import page, query_number
from gofer.web.dashboard.render import platform_of, render, render_words
from gofer.web.dashboard.trace import cards, spans
from gofer.web.queries import agent_names, connection_names, rows
from gofer.web.queries.jobs import attempts_of, events_of, replies_of
from gofer.web.queries.questions import list_questions
from gofer.web.queries.runtimes import hops_of_job, kept_posts
from gofer.web.titles import with_titles

MAX_EVENTS = 80
"""Of one run whose words are on one page, the newest; those before them are a link away."""
MAX_SPANS = 400
"""Events of the waterfall, which needs no words."""
MAX_RAW = 100


@page("viewer")
async def show(request: Request) -> Response:
    """The page."""
    platform, job_id = platform_of(request), request.path_params["id"]
    before, visitor = query_number(request, "before"), visitor_of(request)
    found = await platform.database.read(
        read, platform=platform, job_id=job_id, before=before, visitor=visitor
    )
    await record_reading(request, found["job"]["conversation_id"], f"job {job_id}")
    (found["job"],) = await with_titles(platform, [found["job"]], visitor)
    base = platform.settings.public_url.rstrip("/") or platform.url or str(request.base_url).rstrip("/")
    until = clock_time(found["job"]["run_at"], platform.settings.timezone, time.time())
    delay = {"until": until, "why": why(found["job"]["reason"])}
    curl = f'curl -H "Authorization: Bearer $GOFER_TOKEN" {base}/api/v1/jobs/{job_id}'
    return await render_words(request, "run.html", **found, delay=delay, curl=curl)


def read(
    connection: Connection, platform: Platform, job_id: int, before: int | None, visitor: Visitor
) -> dict[str, Any]:
    """Everything on the page."""
    job = dict(find_job(connection, job_id)._mapping)
    log = events_of(connection, platform, job_id, before=before, limit=MAX_EVENTS)
    facts = events_of(connection, platform, job_id, words=False, before=before, limit=MAX_SPANS)
    return {
        "job": {**job, "title": _title(connection, job["conversation_id"])},
        "live": job["state"] not in FINAL,
        "trigger": _trigger(connection, platform.vault, job),
        "agents": agent_names(connection),
        "connections": connection_names(connection),
        "attempts": attempts_of(connection, job_id),
        "replies": replies_of(connection, job_id),
        "hops": hops_of_job(connection, job_id),
        "kept": kept_posts(connection, platform, job_id),
        "questions": list_questions(connection, platform.vault, job_id=job_id, visitor=visitor),
        "cost": cost_of_job(connection, job_id),
        "spans": spans(facts, time.time()),
        "cards": cards(log),
        "usage": _usage(log),
        "earlier": log[0]["seq"] if log and log[0]["seq"] > 1 else None,
    }


def _title(connection: Connection, conversation_id: str | None) -> str:
    query = select(conversations.c.title).where(conversations.c.id == conversation_id)
    return str(connection.execute(query).scalar() or "")


def _trigger(connection: Connection, vault: Vault, job: dict[str, Any]) -> dict[str, Any] | None:
    """The first message it answers, and its delivery."""
    if job["conversation_id"] is None:
        return None
    query = (
        select(
            messages.c.event, messages.c.author, messages.c.trust, messages.c.seq, messages.c.sealed,
            deliveries.c.id, deliveries.c.source,
        )
        .outerjoin(
            deliveries,
            (deliveries.c.conversation_id == messages.c.conversation_id)
            & (deliveries.c.message_seq == messages.c.seq),
        )
        .where(
            messages.c.conversation_id == job["conversation_id"],
            messages.c.seq > job["covers_from"],
            messages.c.addressed,
            ~messages.c.author.startswith("agent:"),
        )
        .order_by(messages.c.seq)
        .limit(1)
    )  # fmt: skip
    for found in rows(connection, query):
        sealed = found.pop("sealed")
        if sealed is not None:
            key = conversation_key(connection, vault, job["conversation_id"])
            with contextlib.suppress(Tampered):
                said = open_message(key, job["conversation_id"], found["seq"], sealed)
                found["author"] = said.author.name or found["author"]
        return found
    return None


def _usage(log: list[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for event in log:
        for name, count in (
            (event["data"].get("usage") or {}).items() if event["kind"].startswith("turn.") else ()
        ):
            total[name] = total.get(name, 0) + int(count or 0)
    return {name: count for name, count in total.items() if count}


@page("viewer")
async def raw(request: Request) -> Response:
    """Its events as they are in the log, words opened and masked."""
    platform, job_id = platform_of(request), request.path_params["id"]
    before = query_number(request, "before")

    def read_raw(connection: Connection) -> tuple[list[dict[str, Any]], int, str | None]:
        job = dict(find_job(connection, job_id)._mapping)
        count = connection.execute(select(func.count()).where(events.c.job_id == job_id)).scalar_one()
        return (
            events_of(connection, platform, job_id, before=before, limit=MAX_RAW),
            int(count),
            job["conversation_id"],
        )

    found, count, conversation_id = await platform.database.read(read_raw)
    await record_reading(request, conversation_id, f"job {job_id}")
    return render(request, "events.html", id=job_id, events=found, count=count, shown=len(found))
