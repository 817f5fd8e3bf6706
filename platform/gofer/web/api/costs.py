"""Costs: what was paid, by day, agent and source."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import Response

from gofer.agent.prices import MICROS
from gofer.runs.spend import today
from gofer.store.tables import agents, bindings, spends
from gofer.web.api.http import RequestModel, answered, platform_of, queried


class CostFilter(RequestModel):
    """How far to look back."""

    days: int = Field(default=30, ge=1, le=366, description="Days on which something was paid.")


async def index(request: Request) -> Response:
    """What was paid on the last days, and in all."""
    platform, wanted = platform_of(request), queried(request, CostFilter)
    found = await platform.database.read(
        partial(_costs, days=wanted.days, timezone=platform.settings.timezone)
    )
    return answered(request, found)


def _costs(connection: Connection, days: int, timezone: str) -> dict[str, Any]:
    recent = select(spends.c.day).group_by(spends.c.day).order_by(spends.c.day.desc()).limit(days)
    listed = list(connection.execute(recent).scalars())
    paid = func.sum(spends.c.micros).label("micros")
    query = (
        select(
            spends.c.day,
            spends.c.agent_id,
            agents.c.name,
            bindings.c.connection_id,
            paid,
            func.count().label("calls"),
        )
        .outerjoin(agents, agents.c.id == spends.c.agent_id)
        .outerjoin(bindings, bindings.c.conversation_id == spends.c.conversation_id)
        .where(spends.c.day.in_(listed))
        .group_by(spends.c.day, spends.c.agent_id, agents.c.name, bindings.c.connection_id)
        .order_by(spends.c.day.desc(), paid.desc())
    )
    costs = [
        {
            "day": row.day,
            "agent_id": row.agent_id,
            "agent": row.name or "",
            "connection_id": row.connection_id,
            "dollars": int(row.micros) / MICROS,
            "calls": row.calls,
        }
        for row in connection.execute(query)
    ]
    this_day = today(connection, timezone)
    total = int(connection.execute(select(func.coalesce(func.sum(spends.c.micros), 0))).scalar_one())
    return {
        "total": total / MICROS,
        "today": sum(each["dollars"] for each in costs if each["day"] == this_day),
        "costs": costs,
    }
