"""The overview: what runs, what waits, what failed, what it costs, and what needs a person."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.alarms import refused_lately
from gofer.connections.inflow import POLL, SCHEDULABLE
from gofer.intake.routing import UNHEARD
from gofer.jobs.maintenance import depth, oldest_ready
from gofer.memory.manager import by_rule_lately
from gofer.memory.notes import OFF
from gofer.memory.recall import advice
from gofer.releases.lifecycle import last_failure, open_home
from gofer.runs.spend import today
from gofer.store.db_time import now
from gofer.store.tables import ENDED_BADLY, JobState, conversations, events, in_state, jobs, spends
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor, visitor_of
from gofer.web.dashboard.checks import Checks
from gofer.web.dashboard.endpoints import page
from gofer.web.dashboard.render import platform_of, render
from gofer.web.queries import agent_names, rows
from gofer.web.queries.costs import total_cost
from gofer.web.queries.goals import under_way
from gofer.web.queries.questions import list_questions
from gofer.web.titles import with_titles

MAX_LISTED = 8
"""Rows of each list."""
UNHEARD_FOR = 24 * 3600
"""Seconds for which a message that nobody answered is shown."""
RECENT_JOBS = 300
"""The newest jobs, among which is looked for those that ended early."""


@page("viewer")
async def show(request: Request) -> Response:
    """The page."""
    platform = platform_of(request)
    checks: Checks = request.app.state.checks
    visitor = visitor_of(request)
    found = await platform.database.read(
        read, vault=platform.vault, timezone=platform.settings.timezone, visitor=visitor
    )
    for name in ("running", "dead", "early", "unheard"):
        found[name] = await with_titles(platform, found[name], visitor)
    found["goals"] = platform.redactor.redact_value(found["goals"])
    found["failure"] = await asyncio.to_thread(last_failure, open_home(platform.settings))
    connections = await checks.connections()
    turned_away = sum(platform.refusals.counts.values())
    memory = [advice(*each) for each in sorted(platform.recall.degraded.items())]
    memory += [] if platform.settings.memory_v1 else [OFF]
    memory += await platform.database.read(by_rule_lately)
    return render(
        request,
        "overview.html",
        **found,
        connections=connections,
        turned_away=turned_away,
        memory=memory if visitor.may("operator") else [],
    )


def read(connection: Connection, vault: Vault, timezone: str, visitor: Visitor) -> dict[str, Any]:
    """Everything on the page that the store knows."""
    states = depth(connection)
    return {
        "states": states,
        "oldest": oldest_ready(connection),
        "running": _jobs(connection, JobState.RUNNING),
        "dead": _jobs(connection, JobState.DEAD) if states.get("dead") else [],
        "early": _ended_early(connection),
        "questions": list_questions(connection, vault, visitor=visitor, limit=MAX_LISTED),
        "unheard": _unheard(connection),
        "goals": under_way(connection, vault, visitor, MAX_LISTED),
        "spent": total_cost(connection, spends.c.day == today(connection, timezone)),
        "agents": agent_names(connection),
        "refused_rows": refused_lately(connection),
    }


def _unheard(connection: Connection) -> list[dict[str, Any]]:
    """Conversations in which nobody answered a message lately, with the last such message's time."""
    query = (
        select(events.c.conversation_id, conversations.c.title, func.max(events.c.at).label("at"))
        .join(conversations, conversations.c.id == events.c.conversation_id)
        .where(events.c.job_id.is_(None), events.c.at > now() - UNHEARD_FOR, events.c.kind == UNHEARD)
        .group_by(events.c.conversation_id, conversations.c.title)
        .order_by(func.max(events.c.at).desc())
    )
    return rows(connection, query.limit(MAX_LISTED))


def _ended_early(connection: Connection) -> list[dict[str, Any]]:
    """Of the newest jobs those that are done and yet did not do their work: a model refused, a limit was reached."""
    newest = select(func.max(jobs.c.id)).scalar_subquery()
    query = _SHOWN.where(jobs.c.id > newest - RECENT_JOBS, jobs.c.state == JobState.DONE, jobs.c.reason != "")
    query = query.where(jobs.c.kind.not_in((POLL, *SCHEDULABLE)))  # the connection itself says what is wrong
    return rows(connection, query.order_by(jobs.c.id.desc()).limit(MAX_LISTED))


_SHOWN = select(
    jobs.c.id, jobs.c.kind, jobs.c.agent_id, jobs.c.conversation_id, jobs.c.reason, jobs.c.attempts,
    jobs.c.created_at, jobs.c.run_at, jobs.c.finished_at, conversations.c.title,
).outerjoin(conversations, conversations.c.id == jobs.c.conversation_id)  # fmt: skip


def _jobs(connection: Connection, state: JobState) -> list[dict[str, Any]]:
    query = (
        _SHOWN.where(in_state(state))
        .order_by(jobs.c.id.desc() if state is JobState.DEAD else jobs.c.created_at.desc())
        .limit(MAX_LISTED)
    )
    if state is JobState.DEAD:
        query = query.where(ENDED_BADLY)
    # Polling never ends; it is no news that it runs.
    if state is JobState.RUNNING:
        query = query.where(jobs.c.kind != POLL)
    return rows(connection, query)
