"""Costs: what was spent by day, model, agent and source, beside the budgets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import date
from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import GoferError
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.spend import today
from gofer.store.tables import spends
from gofer.web.dashboard.endpoints import page
from gofer.web.dashboard.render import platform_of, render
from gofer.web.queries import agent_names, connection_names
from gofer.web.queries.costs import calendar_days, list_costs

SPANS = {"7": 7, "30": 30, "90": 90}
BY = {"model": "Model", "agent": "Agent", "source": "Source"}


@page("viewer")
async def show(request: Request) -> Response:
    """The page."""
    platform = platform_of(request)
    days = SPANS.get(request.query_params.get("days", ""), 30)
    by = request.query_params.get("by", "model")
    by = by if by in BY else "model"
    found = await platform.database.read(read, timezone=platform.settings.timezone, days=days)
    budgets = await asyncio.to_thread(
        _budgets, AgentFiles.of(platform.settings), list(found["agents"].values())
    )
    return render(
        request,
        "costs.html",
        days=days,
        by=by,
        ways=BY,
        spans=list(SPANS),
        chart=_chart(found, by, sum(budgets.values())),
        tables=[{"by": by, "title": title, "rows": _totals(found["lines"], by)} for by, title in BY.items()],
        today=found["today"],
        total=sum(line["dollars"] for line in found["lines"]),
        spent_today=_by_agent_today(found),
        budgets=budgets,
        daily=_daily(found),
    )


def read(connection: Connection, timezone: str, days: int) -> dict[str, Any]:
    """Sums by day, agent, model and source, with names."""
    last = today(connection, timezone)
    every_day, names = calendar_days(last, days), connection_names(connection)
    lines = [
        {
            **line,
            "agent": line["agent"] or line["agent_id"] or "unknown",
            "model": line["model"] or "unknown",
            "source": names.get(line["connection_id"], line["connection_id"] or "unknown"),
        }
        for line in list_costs(connection, every_day, spends.c.model)
    ]
    return {"lines": lines, "days": every_day, "today": last, "agents": agent_names(connection)}


def _totals(lines: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    dollars: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for line in lines:
        dollars[line[by]] += line["dollars"]
        calls[line[by]] += line["calls"]
    most = max(dollars.values(), default=0) or 1
    return [
        {"name": name, "dollars": sum_, "calls": calls[name], "share": round(sum_ / most * 1000)}
        for name, sum_ in sorted(dollars.items(), key=lambda item: -item[1])
    ]


def _chart(found: dict[str, Any], by: str, budget: float) -> dict[str, Any]:
    """Stacked bars by day, as uPlot wants them."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for line in found["lines"]:
        sums[line[by], line["day"]] += line["dollars"]
    names = [row["name"] for row in _totals(found["lines"], by)][:8]
    return {
        "days": [_noon(day) for day in found["days"]] if names else [],
        "series": [
            {"name": name, "values": [round(sums[name, day], 6) for day in found["days"]]} for name in names
        ],
        "budget": budget,
    }


def _noon(day: str) -> int:
    """Noon in UTC is that day nearly everywhere."""
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * 86400 + 43200


def _daily(found: dict[str, Any]) -> list[dict[str, Any]]:
    sums: dict[str, float] = defaultdict(float)
    for line in found["lines"]:
        sums[line["day"]] += line["dollars"]
    return [{"day": day, "dollars": sums[day]} for day in reversed(found["days"]) if sums[day]]


def _by_agent_today(found: dict[str, Any]) -> dict[str, float]:
    lines = [line for line in found["lines"] if line["day"] == found["today"]]
    return {row["name"]: row["dollars"] for row in _totals(lines, "agent")}


def _budgets(known: AgentFiles, names: list[str]) -> dict[str, float]:
    """What each agent may spend in a day; 0 for no bound."""
    return {name: _spec(known, name).limits.day_dollars for name in sorted(names)}


def _spec(known: AgentFiles, name: str) -> AgentSpec:
    try:
        return known.get(name)
    except GoferError:
        return AgentSpec(name="default")
