"""What a heartbeat finds, looked for without a model: questions nobody answered, work that failed, connections in
trouble, goals that are stuck, and items of HEARTBEAT.md that are due.

Every look reads a bounded number of rows through an index, writes nothing, and depends on no earlier look: the same
thing is found again until it is on record, whoever looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gofer.connections.inflow import CATCH_UP, POLL, lane_of
from gofer.identity import private_person
from gofer.jobs.kinds import ANSWER, POST
from gofer.runs.heartbeat_settings import HeartbeatItem, HeartbeatSettings, due_items
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import (
    ENDED_BADLY,
    JobState,
    connections,
    conversations,
    goals,
    heartbeat_findings,
    in_state,
    jobs,
    messages,
    participants,
    principals,
    questions,
    tasks,
)

QUESTION, FAILED, UNHEALTHY, ITEM = (
    "question.unanswered",
    "job.failed",
    "connection.unhealthy",
    "item.due",
)
GOAL_BLOCKED, GOAL_OVERDUE, GOAL_STALLED = "goal.blocked", "goal.overdue", "goal.stalled"
RECOMMENDATIONS = {
    QUESTION: ("answer_question", "Answer the question, or say that it is not needed any more."),
    FAILED: ("try_again", "Ask for it again, or say what should be done instead."),
    UNHEALTHY: (
        "fix_connection",
        "Look at the connection: `gofer doctor` says what is wrong and how to fix it.",
    ),
    ITEM: ("do_item", "Do what the item says, or take it off the list."),
    GOAL_BLOCKED: ("unblock_goal", "Answer what the goal waits for, or cancel it."),
    GOAL_OVERDUE: ("review_goal", "Look at how far the goal is, and give it more time or cancel it."),
    GOAL_STALLED: ("review_goal", "Look at how far the goal is, and say how to go on or cancel it."),
}
"""By what was found: the code of what is recommended, and the sentence."""
WAITED = 3600.0
"""Seconds after which a question counts as unanswered."""
FAILED_WITHIN = 86400.0
"""Seconds for which something that failed is news."""
ASKED_WITHIN = 30 * 86400.0
STALLED_AFTER = 6 * 3600.0
"""Seconds without progress after which a goal at work counts as stalled."""
MAX_ROWS = 500
"""Rows that one look reads of each sort, the newest."""
MAX_HOMES = 50
RECURRING = (UNHEALTHY, ITEM)
"""What may be found again for another period; not while nobody has reacted to the last nudge about it."""


@dataclass(frozen=True, slots=True)
class Due:
    """Something that is due."""

    code: str
    subject: str
    conversation_id: str
    """Where it belongs; empty for what belongs to no conversation."""
    period: str = ""

    def key(self, agent_id: str) -> str:
        """What makes finding it again no news."""
        return "|".join((agent_id, self.code, self.subject, self.period))


@dataclass(frozen=True, slots=True)
class HeartbeatWatch:
    """Whose heartbeat looks, and when."""

    agent_id: str
    name: str
    settings: HeartbeatSettings
    items: tuple[HeartbeatItem, ...]
    timezone: str
    at: float

    @property
    def open(self) -> bool:
        """Whether it is within the hours."""
        return self.settings.is_time(self.at, self.timezone)


def clock(connection: Connection) -> float:
    """The database's time."""
    return float(connection.execute(select(now())).scalar_one())


def look(connection: Connection, watch: HeartbeatWatch) -> list[Due]:
    """Everything that is due and not on record, each with the conversation it is to be told in."""
    if not watch.open:
        return []
    found = [*_questions(connection, watch), *_failed(connection, watch), *_unhealthy(connection, watch)]
    found += _goals(connection, watch)
    found += [
        Due(ITEM, f"item:{item.id}", "", period)
        for item, period in due_items(watch.items, watch.at, watch.timezone)
    ]
    fresh = _not_on_record(connection, watch, found)
    return _housed(connection, watch, fresh) if fresh else []


def _questions(connection: Connection, watch: HeartbeatWatch) -> Iterable[Due]:
    """Questions of this agent's runs, and of programs in its name, that nobody has answered for a while."""
    open_ones = (
        select(questions.c.id, questions.c.job_id, questions.c.conversation_id, questions.c.asked_at)
        .where(questions.c.answered_at.is_(None), questions.c.asked_at < watch.at - WAITED)
        .where(questions.c.asked_at > watch.at - ASKED_WITHIN)
        .order_by(questions.c.asked_at.desc())
        .limit(MAX_ROWS)
        .subquery()
    )
    query = (
        select(open_ones.c.id, open_ones.c.conversation_id)
        .join(jobs, jobs.c.id == open_ones.c.job_id)
        .where(jobs.c.agent_id == watch.agent_id, jobs.c.kind.in_((ANSWER, POST)))
        .where(in_state(JobState.WAITING), open_ones.c.conversation_id.is_not(None))
    )
    for row in connection.execute(query):
        yield Due(QUESTION, f"question:{row.id}", row.conversation_id)


def _failed(connection: Connection, watch: HeartbeatWatch) -> Iterable[Due]:
    """Answers of this agent that were given up."""
    newest = (
        select(jobs.c.id)
        .where(in_state(JobState.DEAD), ENDED_BADLY)
        .order_by(jobs.c.id.desc())
        .limit(MAX_ROWS)
        .subquery()
    )
    query = (
        select(jobs.c.id, jobs.c.conversation_id, jobs.c.attempts)
        .where(jobs.c.id.in_(select(newest.c.id)), jobs.c.agent_id == watch.agent_id, jobs.c.kind == ANSWER)
        .where(jobs.c.finished_at.between(watch.at - FAILED_WITHIN, watch.at + FAILED_WITHIN))
        .where(jobs.c.conversation_id.is_not(None), jobs.c.reason != "purged")
    )
    for row in connection.execute(query):
        yield Due(FAILED, f"job:{row.id}:{row.attempts}", row.conversation_id)


def _unhealthy(connection: Connection, watch: HeartbeatWatch) -> Iterable[Due]:
    """Connections whose service gives us nothing, as their own jobs say."""
    waiting = select(jobs.c.lane).where(
        in_state(JobState.SCHEDULED), jobs.c.kind.in_((POLL, CATCH_UP)), jobs.c.reason != ""
    )
    lanes = set(connection.execute(waiting.limit(MAX_ROWS)).scalars())
    if not lanes:
        return
    for row in connection.execute(select(connections.c.id).where(connections.c.enabled)):
        if lanes & {lane_of(POLL, row.id), lane_of(CATCH_UP, row.id)}:
            yield Due(UNHEALTHY, f"connection:{row.id}", "", str(int(watch.at // 86400)))


def _goals(connection: Connection, watch: HeartbeatWatch) -> Iterable[Due]:
    """Goals of this agent that wait for somebody, are late, or do not move."""
    moved = (
        select(func.max(func.coalesce(tasks.c.finished_at, tasks.c.started_at, tasks.c.created_at)))
        .where(tasks.c.goal_id == goals.c.id)
        .scalar_subquery()
    )
    query = select(goals, moved.label("moved")).where(
        goals.c.agent_id == watch.agent_id, goals.c.finished_at.is_(None), goals.c.state != "paused"
    )
    for row in connection.execute(query.order_by(goals.c.created_at.desc()).limit(MAX_ROWS)).all():
        if not row_macs.fits(connection, goals, row):
            continue
        since = max(row.changed_at, row.moved or 0)
        subject = f"goal:{row.id}"
        if row.until is not None and row.until < watch.at:
            yield Due(GOAL_OVERDUE, subject, row.conversation_id)
        elif row.state == "blocked" and since < watch.at - WAITED:
            yield Due(GOAL_BLOCKED, subject, row.conversation_id, f"{since:.0f}")
        elif row.state != "blocked" and since < watch.at - STALLED_AFTER:
            yield Due(GOAL_STALLED, subject, row.conversation_id, f"{since:.0f}")


def _not_on_record(connection: Connection, watch: HeartbeatWatch, found: Sequence[Due]) -> list[Due]:
    keys = {each.key(watch.agent_id): each for each in found}
    if not keys:
        return []
    known = select(heartbeat_findings.c.key).where(heartbeat_findings.c.key.in_(list(keys)))
    there = set(connection.execute(known).scalars())
    return [each for key, each in keys.items() if key not in there and not _ignored(connection, watch, each)]


def _ignored(connection: Connection, watch: HeartbeatWatch, found: Due) -> bool:
    """Whether the last nudge about the same thing is unanswered: then it is not repeated."""
    if found.code not in RECURRING:
        return False
    last = connection.execute(
        select(heartbeat_findings)
        .where(heartbeat_findings.c.agent_id == watch.agent_id, heartbeat_findings.c.subject == found.subject)
        .order_by(heartbeat_findings.c.found_at.desc())
        .limit(1)
    ).first()
    if last is None or last.state != "nudged":
        return False
    since = (
        select(messages.c.seq)
        .where(messages.c.conversation_id == last.conversation_id)
        .where(messages.c.created_at > last.settled_at, messages.c.trust.in_(("owner", "member")))
        .where(messages.c.author.not_like("agent:%"))
        .limit(1)
    )
    return connection.execute(since).first() is None


def _housed(connection: Connection, watch: HeartbeatWatch, found: Sequence[Due]) -> list[Due]:
    """What is found, where it may be told: in its own conversation, or else in the agent's home. What has no place is
    left out, and found again when there is one."""
    home = "" if all(each.conversation_id for each in found) else home_of(connection, watch)
    placed = [
        Due(each.code, each.subject, each.conversation_id or home, each.period)
        for each in found
        if each.conversation_id or home
    ]
    heard = select(participants.c.conversation_id).where(
        participants.c.agent_id == watch.agent_id,
        participants.c.muted_at.is_(None),
        participants.c.conversation_id.in_({each.conversation_id for each in placed}),
    )
    open_to = set(connection.execute(heard).scalars()) if placed else set()
    return [each for each in placed if each.conversation_id in open_to]


def home_of(connection: Connection, watch: HeartbeatWatch) -> str:
    """The conversation in which an agent tells of what belongs to none: the one that its settings name, or the last
    one that an owner has in private with it. Empty when there is none."""
    mine = (
        select(conversations.c.id)
        .join(participants, participants.c.conversation_id == conversations.c.id)
        .where(participants.c.agent_id == watch.agent_id, conversations.c.data_key.is_not(None))
    )
    if watch.settings.conversation:
        wanted = mine.where(conversations.c.id == watch.settings.conversation)
        return str(connection.execute(wanted).scalar() or "")
    rooms = mine.where(conversations.c.private.is_(True)).order_by(conversations.c.created_at.desc())
    spoken = [
        (_last_word(connection, room), str(room))
        for room in connection.execute(rooms.limit(MAX_HOMES)).scalars()
        if _is_owners(connection, str(room))
    ]
    return max(spoken)[1] if spoken else ""


def _last_word(connection: Connection, conversation_id: str) -> float:
    query = select(messages.c.created_at).where(messages.c.conversation_id == conversation_id)
    return float(connection.execute(query.order_by(messages.c.seq.desc()).limit(1)).scalar() or 0)


def _is_owners(connection: Connection, conversation_id: str) -> bool:
    person = private_person(connection, conversation_id)
    role = select(principals.c.role).where(principals.c.id == person)
    return person is not None and connection.execute(role).scalar() == "owner"
