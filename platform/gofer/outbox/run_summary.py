"""How a run is getting on, and in the end how it went, read from its log for whoever shows it to people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from gofer.errors import NotFound
from gofer.integration import PlanItem, Progress
from gofer.sanitize import defuse
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import Trust, attempts, bindings, events, jobs, messages, spends
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Redactor

SLOW_MODEL = "the model, which takes long to begin"
MICROS = 1_000_000
"""Of a dollar, in which spending is kept."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Tells of runs, without what must stay secret."""

    vault: Vault
    redactor: Redactor
    public_url: str

    def progress(self, connection: Connection, job_id: int, waits_for: str = "", words: str = "") -> Progress:
        """How one run is getting on."""
        steps, doing = _steps(connection, job_id)
        message, lasting = _began_with(connection, job_id)
        return Progress(
            seconds=_seconds(connection, job_id),
            steps=steps,
            doing=doing,
            message=message,
            stable_id=lasting,
            waits_for=waits_for or (SLOW_MODEL if _is_slow(connection, job_id) else ""),
            words=defuse(words),
            plan=tuple(
                # It may be shown before anybody knows whether strangers' words led to it.
                PlanItem(defuse(self.redactor.redact(str(item["text"]))), item["state"])
                for item in _plan(connection, self.vault, job_id)
            ),
            cost=_cost(connection, job_id),
            url=f"{self.public_url.rstrip('/')}/runs/{job_id}" if self.public_url else "",
        )


def _began_with(connection: Connection, job_id: int) -> tuple[str, str]:
    """The first message that a run answers, and its place; others may have joined it since."""
    found = connection.execute(_BEGAN_WITH, {"job": job_id}).first()
    return (found.external_id, found.lasting or "") if found is not None else ("", "")


_BEGAN_WITH = (
    select(messages.c.external_id, bindings.c.lasting)
    .join(jobs, jobs.c.conversation_id == messages.c.conversation_id)
    .outerjoin(
        bindings,
        (bindings.c.conversation_id == messages.c.conversation_id)
        & (bindings.c.connection_id == messages.c.connection_id),
    )
    .where(jobs.c.id == bindparam("job"), messages.c.seq > jobs.c.covers_from, messages.c.addressed)
    .where(messages.c.trust.in_((Trust.OWNER, Trust.MEMBER)))
    .order_by(messages.c.seq)
    .limit(1)
)


def _steps(connection: Connection, job_id: int) -> tuple[int, str]:
    """How many turns a run has taken, and the tool it is at, if it is at one."""
    of_job = events.c.job_id == job_id
    turns = select(func.count()).select_from(events).where(of_job, events.c.kind == "turn.started")
    last = select(events.c.kind, events.c.data).where(of_job, events.c.kind.like("tool.%"))
    row = connection.execute(last.order_by(events.c.seq.desc()).limit(1)).first()
    doing = str(row.data.get("name", "")) if row is not None and row.kind == "tool.started" else ""
    return int(connection.execute(turns).scalar_one()), doing


def _is_slow(connection: Connection, job_id: int) -> bool:
    """Whether the model has let a run wait for long, and still does."""
    last = select(events.c.kind).where(events.c.job_id == job_id).order_by(events.c.seq.desc()).limit(1)
    return connection.execute(last).scalar() == "turn.slow"


def _seconds(connection: Connection, job_id: int) -> float:
    """For how long it was worked on, over every try."""
    spent = func.sum(func.coalesce(attempts.c.ended_at, now()) - attempts.c.started_at)
    query = select(func.coalesce(spent, 0)).where(attempts.c.job_id == job_id)
    return max(0.0, float(connection.execute(query).scalar_one()))


def _cost(connection: Connection, job_id: int) -> float:
    query = select(func.coalesce(func.sum(spends.c.micros), 0)).where(spends.c.job_id == job_id)
    return int(connection.execute(query).scalar_one()) / MICROS


def _plan(connection: Connection, vault: Vault, job_id: int) -> list[dict[str, Any]]:
    """The plan as the run last wrote it down."""
    written = (
        select(events)
        .where(events.c.job_id == job_id, events.c.kind == "tool.finished", events.c.sealed.is_not(None))
        .where(events.c.data["name"].as_string() == "todo")
        .order_by(events.c.seq.desc())
        .limit(1)
    )
    row = connection.execute(written).first()
    if row is None or row.conversation_id is None:
        return []
    try:
        key = conversation_key(connection, vault, row.conversation_id)
        plan: list[dict[str, Any]] = unseal(key, row.sealed, "event", job_id, row.seq)["details"].get(
            "plan", []
        )
    except (NotFound, Tampered):
        return []
    return plan
