"""Costs: what was paid, by day, agent, model and source."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, func, select

from gofer.agent.prices import MICROS
from gofer.store.tables import agents, spends


def total_cost(connection: Connection, *conditions: ColumnElement[bool]) -> float:
    """Dollars paid in all, or where the conditions hold."""
    query = select(func.coalesce(func.sum(spends.c.micros), 0)).where(*conditions)
    return int(connection.execute(query).scalar_one()) / MICROS


def costs_by_job(connection: Connection, ids: list[int]) -> dict[int, float]:
    """Dollars paid for each of these jobs."""
    query = (
        select(spends.c.job_id, func.sum(spends.c.micros))
        .where(spends.c.job_id.in_(ids))
        .group_by(spends.c.job_id)
    )
    return {job_id: int(micros) / MICROS for job_id, micros in connection.execute(query)}


def last_paid_days(connection: Connection, count: int) -> list[str]:
    """The last days on which something was paid."""
    query = select(spends.c.day).group_by(spends.c.day).order_by(spends.c.day.desc()).limit(count)
    return list(connection.execute(query).scalars())


def calendar_days(last: str, count: int) -> list[str]:
    """So many days up to the last one, which is among them."""
    end = date.fromisoformat(last)
    return [(end - timedelta(days=number)).isoformat() for number in reversed(range(count))]


def list_costs(connection: Connection, days: list[str], *more: Column[Any]) -> list[dict[str, Any]]:
    """Sums by day, agent and source on these days, and by more columns; the newest day first."""
    paid = func.sum(spends.c.micros)
    columns = (spends.c.day, spends.c.agent_id, agents.c.name, spends.c.connection_id, *more)
    query = (
        select(*columns, paid.label("micros"), func.count().label("calls"))
        .outerjoin(agents, agents.c.id == spends.c.agent_id)
        .where(spends.c.day.in_(days))
        .group_by(*columns)
        .order_by(spends.c.day.desc(), paid.desc())
    )
    return [
        {
            "day": row.day,
            "agent_id": row.agent_id,
            "agent": row.name or "",
            "connection_id": row.connection_id or None,
            **{column.name: row._mapping[column] for column in more},
            "dollars": int(row.micros) / MICROS,
            "calls": row.calls,
        }
        for row in connection.execute(query)
    ]
