"""The ledger of spending: money that is set aside counts as spent until the call is settled.

A call sets aside the most it can cost, and usually costs a fraction of that. So a job that finds a cap reached only by
money that others have set aside waits for them; it is not told that the money is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, case, func, select, update

from gofer.agent.limits import Scope, Short
from gofer.agent.prices import MICROS
from gofer.jobs.fence import hold
from gofer.jobs.queue import Claim
from gofer.memory.manager import MEMORY
from gofer.store import fast_sql
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import JobState, agents, events, goals, in_state, jobs, spends

PATIENCE, BETWEEN_TRIES = 60.0, 0.5
"""Seconds to wait for money that is only set aside, and between two checks."""
CALLS_AHEAD = 3
"""Further calls that a running job is expected to make, when a new job asks what is left."""
SPANNING = ("budget.day", "budget.background", "budget.conversation")
"""Reasons of runs that ended by a budget of several jobs: the next run will end the same way."""


class StoreLedger:
    """The `Ledger` of one job."""

    def __init__(
        self, *, database: Database, claim: Claim, timezone: str, goal_id: str | None = None
    ) -> None:
        self._database = database
        self._claim = claim
        self._timezone = timezone
        self._goal_id = goal_id
        """The goal that it is spent for, whose budget bounds it as well."""

    async def reserve(
        self, key: str, amount: int, caps: Mapping[Scope, int], *, background: bool = False
    ) -> Short | None:
        asked: dict[str, Any] = {
            "claim": self._claim, "key": key, "amount": amount, "timezone": self._timezone, "goal_id": self._goal_id,
        }  # fmt: skip
        budget = await self._database.read(goal_budget, goal_id=self._goal_id) if self._goal_id else None
        if budget is not None:
            caps = {**caps, "goal": budget}
        verb = partial(reserve, **asked, caps=dict(caps), background=background)
        give_up = time.monotonic() + PATIENCE
        while (short := await self._database.write(verb)) is not None:
            in_others = partial(only_set_aside, **asked, scope=short.scope, cap=caps[short.scope])
            if time.monotonic() > give_up or not await self._database.read(in_others):
                return short
            await asyncio.sleep(BETWEEN_TRIES)
        return None

    async def settle(self, key: str, amount: int, model: str = "") -> None:
        await self._database.write(
            settle,
            claim=self._claim,
            key=key,
            amount=amount,
            model=model,
            timezone=self._timezone,
            goal_id=self._goal_id,
        )


def reserve(
    connection: Connection,
    claim: Claim,
    key: str,
    amount: int,
    caps: Mapping[Scope, int],
    timezone: str,
    background: bool,
    goal_id: str | None = None,
) -> Short | None:
    """Set money aside if every cap allows it; otherwise say which cap does not."""
    # Runs of one agent reserve one after the other; otherwise two could both take the last dollar.
    fast_sql.fetch(connection, _LOCK_AGENT, {"agent": claim.agent_id})
    hold(connection, claim)
    day = today(connection, timezone)
    of_job = _values(claim, day, key, goal_id)
    for scope, cap in caps.items():
        spent = int(fast_sql.scalar(connection, _spent(scope), of_job))
        if spent + amount + _needed_by_elders(connection, scope, of_job) > cap:
            return Short(scope, spent)
    _put(connection, claim, key, day, amount, settled=False, background=background, goal_id=goal_id)
    return None


_LOCK_AGENT = select(agents.c.id).where(agents.c.id == bindparam("agent")).with_for_update()


def only_set_aside(
    connection: Connection,
    claim: Claim,
    key: str,
    amount: int,
    timezone: str,
    scope: Scope,
    cap: int,
    goal_id: str | None = None,
) -> bool:
    """Whether the money is only set aside for calls of other jobs, which will cost less."""
    of_job = _values(claim, today(connection, timezone), key, goal_id)
    paid = int(fast_sql.scalar(connection, _spent(scope, others_settled=True), of_job))
    return paid + amount <= cap


def goal_budget(connection: Connection, goal_id: str) -> int | None:
    """What a goal may cost; None for no bound of its own."""
    found: int | None = fast_sql.scalar(connection, _BUDGET, {"goal": goal_id})
    return found


_BUDGET = select(goals.c.budget).where(goals.c.id == bindparam("goal"))


def settle(
    connection: Connection,
    claim: Claim,
    key: str,
    amount: int,
    model: str,
    timezone: str,
    goal_id: str | None = None,
) -> None:
    """Replace the money set aside by the money paid. Not fenced: what was paid was paid."""
    settled = connection.execute(
        update(spends)
        .where(spends.c.job_id == claim.id, spends.c.key == key)
        .values(micros=amount, settled=True, model=model)
    )
    if settled.rowcount == 0:
        day = today(connection, timezone)
        _put(connection, claim, key, day, amount, settled=True, model=model, goal_id=goal_id)


def charge(connection: Connection, claim: Claim, key: str, dollars: float, *, timezone: str) -> None:
    """Count what a job has paid for other things than its model."""
    settle(connection, claim, key, round(dollars * MICROS), "", timezone)


def today(connection: Connection, timezone: str) -> str:
    """The workspace's day, by the database's clock."""
    current = float(fast_sql.scalar(connection, _NOW))
    return datetime.fromtimestamp(current, ZoneInfo(timezone)).date().isoformat()


_NOW = select(now())
_JOB = bindparam("job", type_=BigInteger)


def _values(claim: Claim, day: str, key: str = "", goal_id: str | None = None) -> dict[str, Any]:
    """What the statements about a job's scopes are asked with."""
    return {
        "job": claim.id,
        "key": key,
        "agent": claim.agent_id or "",
        "conversation": claim.conversation_id,
        "goal": goal_id,
        "day": day,
    }


@cache
def _spent(scope: Scope, *, others_settled: bool = False) -> Any:
    """What was spent in a scope, and set aside, without the call that asks."""
    own = (spends.c.job_id == _JOB) & (spends.c.key == bindparam("key"))
    query = select(func.coalesce(func.sum(case((own, 0), else_=spends.c.micros)), 0))
    if others_settled:
        # Money that a crash left set aside counts as paid: nobody will settle it soon.
        running = select(jobs.c.id).where(in_state(JobState.RUNNING))
        query = query.where(spends.c.settled | (spends.c.job_id == _JOB) | spends.c.job_id.not_in(running))
    return query.where(_in_scope(scope))


def _needed_by_elders(connection: Connection, scope: Scope, of_job: Mapping[str, Any]) -> int:
    """The money that earlier jobs probably still need. Jobs that began earlier come first; otherwise all of them would
    run out of money with nothing finished.

    It is a few calls for each, at the price of their calls so far, or at what was set aside while none is settled. One
    of the jobs is not counted: two may share what is left.
    """
    rows = fast_sql.fetch(connection, _elders(scope), of_job)
    each = [int(row.settled / row.calls if row.calls else row.waiting) for row in rows]
    return CALLS_AHEAD * (sum(each) - max(each, default=0))


@cache
def _elders(scope: Scope) -> Any:
    """What each running job of a scope that began before this one has paid, for how many calls, and set aside."""
    began = func.min(spends.c.id)
    mine = select(began).where(spends.c.job_id == _JOB).scalar_subquery()
    settled = func.sum(case((spends.c.settled, spends.c.micros), else_=0))
    calls = func.sum(case((spends.c.settled, 1), else_=0))
    waiting = func.max(case((spends.c.settled, 0), else_=spends.c.micros))
    return (
        select(settled.label("settled"), calls.label("calls"), waiting.label("waiting"))
        .join(jobs, jobs.c.id == spends.c.job_id)
        .where(_in_scope(scope), in_state(JobState.RUNNING), spends.c.job_id != _JOB)
        .group_by(spends.c.job_id)
        .having((mine.is_(None)) | (began < mine))
    )


def _in_scope(scope: Scope) -> ColumnElement[bool]:
    if scope == "goal":
        return spends.c.goal_id == bindparam("goal")
    if scope == "conversation":
        return spends.c.conversation_id == bindparam("conversation")
    its_day = (spends.c.agent_id == bindparam("agent")) & (spends.c.day == bindparam("day"))
    if scope == "memory":
        return its_day & spends.c.job_id.in_(select(jobs.c.id).where(jobs.c.kind == MEMORY))
    return its_day & spends.c.background if scope == "background" else its_day


def nearly_used(
    connection: Connection, claim: Claim, caps: Mapping[Scope, int], warn_at: float, timezone: str
) -> tuple[Scope, int, int] | None:
    """The budget that this job has brought to the warning line: which one, what is spent, and the cap. Only the job
    that crosses the line gets it, so people are warned once a day."""
    of_job = _values(claim, today(connection, timezone))
    for scope, cap in caps.items():
        spent, own = map(int, fast_sql.first(connection, _sums(scope), of_job))
        if spent - own < warn_at * cap <= spent:
            return scope, spent, cap
    return None


@cache
def _sums(scope: Scope) -> Any:
    """What was spent in a scope, and how much of it by one job."""
    mine = case((spends.c.job_id == _JOB, spends.c.micros), else_=0)
    sums = select(
        func.coalesce(func.sum(spends.c.micros), 0).label("spent"),
        func.coalesce(func.sum(mine), 0).label("own"),
    )
    return sums.where(_in_scope(scope))


def _put(
    connection: Connection,
    claim: Claim,
    key: str,
    day: str,
    amount: int,
    *,
    settled: bool,
    model: str = "",
    background: bool = False,
    goal_id: str | None = None,
) -> None:
    row = {
        "workspace_id": claim.workspace_id,
        "agent_id": claim.agent_id or "",
        "conversation_id": claim.conversation_id or "",
        "connection_id": claim.connection_id or "",
        "job_id": claim.id,
        "key": key,
        "model": model,
        "day": day,
        "micros": amount,
        "settled": settled,
        "background": background,
        "goal_id": goal_id,
    }
    fast_sql.fetch(connection, _putting(connection.dialect.name), row)


@cache
def _putting(dialect: str) -> Any:
    insert = fast_sql.upsert(dialect, spends)
    kept = {name: insert.excluded[name] for name in ("micros", "settled", "day", "background")}
    return insert.on_conflict_do_update(index_elements=["job_id", "key"], set_=kept)


def ran_out_before(connection: Connection, claim: Claim, code: str, timezone: str) -> bool:
    """Whether an earlier run here ended because of the same budget: today, or, for a budget that is not daily, since
    the last run that did its work."""
    query = (
        select(events.c.id)
        .join(jobs, jobs.c.id == events.c.job_id)
        .where(events.c.conversation_id == claim.conversation_id, events.c.kind == "run.stopped")
        .where(events.c.data["code"].as_string() == code)
        .where(jobs.c.participant_id == claim.participant_id, jobs.c.id < claim.id)
    )
    if code == "budget.conversation":
        done = select(func.coalesce(func.max(jobs.c.id), 0)).where(
            jobs.c.participant_id == claim.participant_id, jobs.c.state == JobState.DONE, jobs.c.reason == ""
        )
        query = query.where(jobs.c.id > done.scalar_subquery())
    else:
        midnight = datetime.fromisoformat(today(connection, timezone)).replace(tzinfo=ZoneInfo(timezone))
        query = query.where(events.c.at >= midnight.timestamp())
    return connection.execute(query.limit(1)).first() is not None


def cost_of_job(connection: Connection, job_id: int) -> float:
    """What a job has cost so far, in dollars."""
    return int(fast_sql.scalar(connection, _COST, {"job": job_id})) / MICROS


_COST = select(func.coalesce(func.sum(spends.c.micros), 0)).where(spends.c.job_id == _JOB)
