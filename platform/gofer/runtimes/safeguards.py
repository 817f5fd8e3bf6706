"""What stops external agents: rates, and blocks when they get nowhere. A person unblocks them.

Everything is counted from rows that are there anyway, by the database's clock, so that the same state always gives the
same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from gofer.errors import TooOften
from gofer.jobs.kinds import POST
from gofer.store import events as log
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import ASIDE, Trust, agents, hops, jobs, messages, participants

HOUR, MINUTE = 3600.0, 60.0
NO_PROGRESS, SAME_WORDS = "loop.no_progress", "loop.same_words"
RATE = "rate.limited"


@dataclass(frozen=True, slots=True)
class SafeguardRules:
    """How much is too much."""

    turns: int = 20
    """Triggers in a conversation, one after the other, without a word from a person."""
    findings: int = 3
    """Answers of one agent, one after the other and without a word from a person, that say the same."""
    per_agent: int = 60
    """Triggers of one agent in an hour."""
    per_conversation: int = 30
    """Triggers in one conversation in an hour."""


def check_posts(connection: Connection, conversation_id: str, agent: str, most: int) -> None:
    """Raises TooOften when an agent has said too much in a conversation within a minute."""
    query = (
        select(func.count())
        .select_from(jobs)
        .join(agents, agents.c.id == jobs.c.agent_id)
        .where(jobs.c.conversation_id == conversation_id, agents.c.name == agent)
        .where(jobs.c.kind == POST, jobs.c.created_at > now() - MINUTE)
    )
    if int(connection.execute(query).scalar_one()) >= most:
        raise TooOften(f"{agent} said {most} things here within a minute. Wait.", retry_after=MINUTE)


def why_not(connection: Connection, participant: Any, rules: SafeguardRules, job_id: int = 0) -> str:
    """Why a participant may not be woken now; empty when it may. Blocks it when it gets nowhere.

    `job_id` is the Trigger that asks, which does not count itself. The caller holds the conversation's lock.
    """
    if participant.blocked_at is not None:
        return f"blocked.{participant.blocked_reason}"
    last = _last_of_a_person(connection, participant.conversation_id)
    for reason, found in (
        (NO_PROGRESS, _turns(connection, participant, last, job_id) >= rules.turns),
        (SAME_WORDS, _same_words(connection, participant, last, rules.findings)),
    ):
        if found:
            _block(connection, participant, reason)
            return f"blocked.{reason}"
    return RATE if room_after(connection, participant, rules, job_id) > 0 else ""


def room_after(connection: Connection, participant: Any, rules: SafeguardRules, job_id: int = 0) -> float:
    """Seconds until the rates leave room for one more Trigger; 0 when they do now."""
    waits = [
        _wait(connection, hops.c.agent_id == participant.agent_id, rules.per_agent, job_id),
        _wait(
            connection,
            hops.c.conversation_id == participant.conversation_id,
            rules.per_conversation,
            job_id,
        ),
    ]
    return max(waits)


def _wait(connection: Connection, which: Any, most: int, job_id: int) -> float:
    """When the oldest of the last `most` Triggers is an hour ago."""
    began = (
        select(func.min(hops.c.created_at).label("at"))
        .where(which, hops.c.created_at > now() - HOUR, hops.c.job_id != job_id)
        .group_by(hops.c.job_id)
        .subquery()
    )
    nth = select(began.c.at, now().label("now")).order_by(began.c.at.desc()).offset(most - 1).limit(1)
    row = connection.execute(nth).first()
    return 0.0 if row is None else max(1.0, min(HOUR, row.at + HOUR - row.now))


def _last_of_a_person(connection: Connection, conversation_id: str) -> int:
    """The number of the last message of a person who is known: their words are progress."""
    person = select(func.max(messages.c.seq)).where(
        messages.c.conversation_id == conversation_id,
        messages.c.author.not_like("agent:%"),
        messages.c.trust.in_((Trust.OWNER, Trust.MEMBER)),
        messages.c.event.not_in(ASIDE),
    )
    return int(connection.execute(person).scalar() or 0)


def _turns(connection: Connection, participant: Any, last: int, job_id: int) -> int:
    """Triggers in the conversation since a person last said something there."""
    query = (
        select(func.count(func.distinct(hops.c.job_id)))
        .join(jobs, jobs.c.id == hops.c.job_id)
        .where(hops.c.conversation_id == participant.conversation_id)
        .where(hops.c.created_at > (participant.unblocked_at or 0.0))
        .where(jobs.c.covers_from >= last, hops.c.job_id != job_id)
    )
    return int(connection.execute(query).scalar_one())


def _same_words(connection: Connection, participant: Any, last: int, most: int) -> bool:
    """Whether the agent's last answers, since a person last said something, are the same."""
    query = (
        select(hops.c.said)
        .where(hops.c.conversation_id == participant.conversation_id)
        .where(hops.c.agent_id == participant.agent_id, hops.c.said != "", hops.c.covers_to >= last)
        .where(hops.c.created_at > (participant.unblocked_at or 0.0))
        .order_by(hops.c.created_at.desc(), hops.c.job_id.desc(), hops.c.number.desc())
        .limit(most)
    )
    said = list(connection.execute(query).scalars())
    return len(said) == most and len(set(said)) == 1


def _block(connection: Connection, participant: Any, reason: str) -> None:
    values = {"blocked_at": now(), "blocked_reason": reason}
    connection.execute(update(participants).where(participants.c.id == participant.id).values(**values))
    log.record(
        connection, "trigger.blocked", FIRST_WORKSPACE, conversation_id=participant.conversation_id,
        data={"agent": participant.agent_id, "reason": reason},
    )  # fmt: skip
