"""Costs: what was paid, by day, agent and source."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.runs.spend import today
from gofer.web.api.http import RequestModel, platform_of
from gofer.web.queries.costs import last_paid_days, list_costs, total_cost


class CostFilter(RequestModel):
    """How far to look back."""

    days: int = Field(default=30, ge=1, le=366, description="Days on which something was paid.")


async def index(request: Request, query: CostFilter) -> dict[str, Any]:
    """Show what was paid on the last days, and in all."""
    platform = platform_of(request)
    return await platform.database.read(_costs, days=query.days, timezone=platform.settings.timezone)


def _costs(connection: Connection, days: int, timezone: str) -> dict[str, Any]:
    costs = list_costs(connection, last_paid_days(connection, days))
    this_day = today(connection, timezone)
    spent_today = sum(each["dollars"] for each in costs if each["day"] == this_day)
    return {"total": total_cost(connection), "today": spent_today, "costs": costs}
