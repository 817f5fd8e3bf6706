"""One run: what woke it, what it did, said, cost and sent; live while it lasts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import NotFound
from gofer.jobs.control import find_job
from gofer.jobs.wait_reasons import clock_time, why
from gofer.runs.spend import cost_of_job
from gofer.store.content import open_message
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import FINAL, attempts, conversations, deliveries, events, messages, replies
from gofer.vault.envelope import DataKey, Vault
from gofer.web.auth import words_read
from gofer.web.dashboard import questions
from gofer.web.dashboard.endpoints import agent_names, connection_names, number_of, page, rows
from gofer.web.dashboard.render import platform_of, render, render_words
from gofer.web.dashboard.trace import cards, spans
from gofer.web.titles import with_titles

MOST_EVENTS = 80
"""Of one run whose words are on one page, the newest; those before them are a link away."""
MOST_SPANS = 400
"""Events of the waterfall, which needs no words."""
MOST_RAW = 100


@page("viewer")
async def show(request: Request) -> Response:
    """The page."""
    platform, job_id = platform_of(request), request.path_params["id"]
    found = await platform.database.read(
        partial(read, vault=platform.vault, job_id=job_id, before=number_of(request, "before"))
    )
    await words_read(request, found["job"]["conversation_id"], f"job {job_id}")
    (found["job"],) = await with_titles(platform, [found["job"]])
    base = platform.settings.public_url.rstrip("/") or platform.url or str(request.base_url).rstrip("/")
    delay = _delay(found["job"], platform.settings.timezone)
    return await render_words(request, "run.html", **found, delay=delay, curl=_curl(base, job_id))


def _delay(job: Mapping[str, Any], timezone: str) -> dict[str, str]:
    return {"until": clock_time(job["run_at"], timezone, time.time()), "why": why(job["reason"])}


def _curl(base: str, job_id: int) -> str:
    return f'curl -H "Authorization: Bearer $GOFER_TOKEN" {base}/api/v1/jobs/{job_id}'


def read(connection: Connection, vault: Vault, job_id: int, before: int | None) -> dict[str, Any]:
    """Everything on the page."""
    job = dict(find_job(connection, job_id)._mapping)
    log = opened(connection, vault, job, before=before, limit=MOST_EVENTS)
    return {
        "job": {**job, "title": _title(connection, job["conversation_id"])},
        "live": job["state"] not in FINAL,
        "trigger": _trigger(connection, vault, job),
        "agents": agent_names(connection),
        "connections": connection_names(connection),
        "attempts": rows(
            connection, select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.fence)
        ),
        "replies": _replies(connection, job_id),
        "questions": questions.open_questions(connection, vault, job_id=job_id),
        "cost": cost_of_job(connection, job_id),
        "spans": spans(_facts(connection, job_id, before), time.time()),
        "cards": cards(log),
        "usage": _usage(log),
        "earlier": log[0]["seq"] if log and log[0]["seq"] > 1 else None,
    }


def opened(
    connection: Connection, vault: Vault, job: dict[str, Any], *, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """The newest events of a job before a number, in order, with their words."""
    query = select(events).where(events.c.job_id == job["id"]).order_by(events.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(events.c.seq < before)
    key = _key(connection, vault, job["conversation_id"])
    return [_opened(key, dict(row._mapping)) for row in connection.execute(query)][::-1]


def _facts(connection: Connection, job_id: int, before: int | None) -> list[dict[str, Any]]:
    query = select(events.c.kind, events.c.data, events.c.at).where(events.c.job_id == job_id)
    if before is not None:
        query = query.where(events.c.seq < before)
    return rows(connection, query.order_by(events.c.seq.desc()).limit(MOST_SPANS))[::-1]


def _key(connection: Connection, vault: Vault, conversation_id: str | None) -> DataKey | None:
    try:
        return conversation_key(connection, vault, conversation_id or "")
    except NotFound:
        return None


def _opened(key: DataKey | None, row: dict[str, Any]) -> dict[str, Any]:
    sealed = row.pop("sealed")
    words = {}
    if sealed is not None and key is not None:
        words = unseal(key, sealed, "event", row["job_id"], row["seq"])
    return {**row, "data": {**row["data"], **words}}


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
        sealed, key = found.pop("sealed"), _key(connection, vault, job["conversation_id"])
        if sealed is not None and key is not None:
            said = open_message(key, job["conversation_id"], found["seq"], sealed)
            found["author"] = said.author.name or found["author"]
        return found
    return None


def _replies(connection: Connection, job_id: int) -> list[dict[str, Any]]:
    columns = [
        replies.c[name] for name in ("id", "kind", "part", "parts", "state", "tries", "reason", "sent_at")
    ]
    of_job = (replies.c.job_id == job_id) | (
        replies.c.failed_in == job_id
    )  # planned by it, or given up by it
    return rows(connection, select(*columns).where(of_job).order_by(replies.c.id))


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
    before = number_of(request, "before")

    def read_raw(connection: Connection) -> tuple[list[dict[str, Any]], int, str | None]:
        job = dict(find_job(connection, job_id)._mapping)
        count = connection.execute(select(func.count()).where(events.c.job_id == job_id)).scalar_one()
        return (
            opened(connection, platform.vault, job, before=before, limit=MOST_RAW),
            int(count),
            job["conversation_id"],
        )

    found, count, conversation_id = await platform.database.read(read_raw)
    await words_read(request, conversation_id, f"job {job_id}")
    return render(request, "events.html", id=job_id, events=found, count=count, shown=len(found))
