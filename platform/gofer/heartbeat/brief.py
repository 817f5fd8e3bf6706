"""What a heartbeat's run is told: its conversation's findings in words, and nothing else.

The words are read when they are needed, from where they are kept, so that a finding that is over by then is noticed.
Each belongs to the conversation the run speaks in; what strangers may speak through is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from gofer.connections.inflow import fetch_trouble
from gofer.errors import NotFound
from gofer.goals.records import find_goal, request_of, task_count
from gofer.heartbeat.findings import (
    FAILED,
    GOAL_BLOCKED,
    GOAL_OVERDUE,
    GOAL_STALLED,
    ITEM,
    QUESTION,
    RECOMMENDATIONS,
    UNHEALTHY,
)
from gofer.jobs.wait_reasons import clock_time
from gofer.runs.heartbeat_settings import HeartbeatItem
from gofer.sanitize import gist
from gofer.store import row_macs
from gofer.store.encryption import conversation_key, unseal
from gofer.store.messages import open_readable
from gofer.store.tables import ASIDE, JobState, connections, jobs, messages, questions, replies
from gofer.vault.envelope import DataKey, Vault

MAX_QUOTE = 400
"""Characters of what somebody said that a finding quotes."""
WHY = {
    QUESTION: "a question has been open here since {since}",
    FAILED: "something asked for here could not be done at {since}",
    UNHEALTHY: "the connection {name} gives nothing",
    ITEM: "HEARTBEAT.md has an item that is due",
    GOAL_BLOCKED: "a goal has waited for somebody here since {since}",
    GOAL_OVERDUE: "a goal should have been done at {since}",
    GOAL_STALLED: "a goal has not moved since {since}",
}
"""Why a nudge came, for people."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A finding that is still true, in words."""

    id: str
    number: int
    """In its run, which stays the same when others are over."""
    code: str
    subject: str
    text: str
    """For the model."""
    why: str
    """For people: our own words."""

    @property
    def recommendation(self) -> tuple[str, str]:
        """The code and the sentence of what is recommended."""
        return RECOMMENDATIONS[self.code]


def explain(
    connection: Connection,
    vault: Vault,
    findings: Sequence[Row[Any]],
    items: Sequence[HeartbeatItem],
    timezone: str,
) -> list[Explained]:
    """Those of a job's findings that are undecided and still true, in words."""
    by_id = {f"item:{item.id}": item for item in items}
    explained = []
    for number, finding in enumerate(findings, 1):
        if finding.settled_at is not None:
            continue
        key = conversation_key(connection, vault, finding.conversation_id)
        told = _describe(connection, vault, key, finding, by_id)
        if told is not None:
            text, facts = told
            since = facts.get("since")
            moment = clock_time(since, timezone, finding.found_at) if since is not None else ""
            why = WHY[finding.code].format(since=moment, name=facts.get("name", ""))
            words = f"{text} {moment}".strip()
            explained.append(Explained(finding.id, number, finding.code, finding.subject, words, why))
    return explained


def _describe(
    connection: Connection, vault: Vault, key: DataKey, finding: Row[Any], items: dict[str, HeartbeatItem]
) -> tuple[str, dict[str, Any]] | None:
    subject = finding.subject.partition(":")[2]
    if finding.code == QUESTION:
        return _question(connection, key, subject)
    if finding.code == FAILED:
        return _failure(connection, key, int(subject.partition(":")[0]))
    if finding.code == UNHEALTHY:
        return _connection(connection, subject)
    if finding.code in GOALS:
        return _goal(connection, vault, finding.code, subject)
    item = items.get(finding.subject)
    return None if item is None else (f"The owner's list says that this is due: {item.text}", {})


def _question(connection: Connection, key: DataKey, question_id: str) -> tuple[str, dict[str, Any]] | None:
    row = connection.execute(
        select(questions, jobs.c.state)
        .join(jobs, jobs.c.id == questions.c.job_id)
        .where(questions.c.id == question_id, questions.c.answered_at.is_(None))
    ).first()
    if row is None or row.state != JobState.WAITING:
        return None
    asked = ""
    if row.sealed is not None and not _is_narrowed(connection, key, row.job_id):
        asked = f": {gist(str(unseal(key, row.sealed, 'question', row.id)), MAX_QUOTE)!r}"
    return f"You asked a question here and nobody has answered{asked}. Asked", {"since": row.asked_at}


def _is_narrowed(connection: Connection, key: DataKey, job_id: int) -> bool:
    """Whether strangers may speak through what a job said: then its words are not repeated."""
    rows = connection.execute(
        select(replies).where(replies.c.job_id == job_id, replies.c.sealed.is_not(None)).limit(50)
    ).all()
    said = [unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part) for row in rows]
    return not said or any(each.get("narrowed", False) for each in said)


def _failure(connection: Connection, key: DataKey, job_id: int) -> tuple[str, dict[str, Any]] | None:
    job = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
    if job is None or job.state != JobState.DEAD:
        return None
    asked = _requests_text(connection, key, job)
    words = f": {asked!r}" if asked else ""
    return f"You could not do what was asked here{words}. The reason has the code {job.reason}. It ended", {
        "since": job.finished_at
    }


def _requests_text(connection: Connection, key: DataKey, job: Any) -> str:
    """What somebody known asked for in the messages that a job covers."""
    query = (
        select(messages)
        .where(messages.c.conversation_id == job.conversation_id, messages.c.seq > job.covers_from)
        .where(messages.c.addressed, messages.c.sealed.is_not(None), messages.c.event.not_in(ASIDE))
        .order_by(messages.c.seq.desc())
        .limit(20)
    )
    for read in open_readable(key, connection.execute(query).all()):
        covered = job.covers_to is None or read.seq <= job.covers_to
        if covered and read.trust.value in ("owner", "member") and not read.message.quoted:
            return gist(read.message.text, MAX_QUOTE)
    return ""


GOALS = {
    GOAL_BLOCKED: "A goal waits for somebody",
    GOAL_OVERDUE: "A goal is late",
    GOAL_STALLED: "A goal does not move",
}


def _goal(connection: Connection, vault: Vault, code: str, goal_id: str) -> tuple[str, dict[str, Any]] | None:
    """A goal that is still as it was found. What it wants is quoted when somebody known said it."""
    try:
        goal = find_goal(connection, goal_id)
        asked = request_of(connection, vault, goal)
    except (NotFound, row_macs.RowRefused):
        return None
    over = goal.finished_at is not None or goal.state == "paused"
    moved_on = code != GOAL_OVERDUE and (goal.state == "blocked") != (code == GOAL_BLOCKED)
    if over or moved_on:
        return None
    words = f": {gist(asked.text, MAX_QUOTE)!r}" if goal.trust in ("owner", "member") else ""
    done, total = task_count(connection, goal_id)
    since = goal.until if code == GOAL_OVERDUE else goal.changed_at
    return f"{GOALS[code]}{words}. {done} of {total} tasks are done. It is {goal.state}, since", {
        "since": since
    }


def _connection(connection: Connection, connection_id: str) -> tuple[str, dict[str, Any]] | None:
    row = connection.execute(select(connections).where(connections.c.id == connection_id)).one_or_none()
    reason = fetch_trouble(connection, connection_id) if row is not None and row.enabled else ""
    if row is None or not reason:
        return None
    return f"The connection {row.name} ({row.integration}) gives nothing: {reason}.", {"name": row.name}


def briefing(explained: Sequence[Explained], *, research: bool = False) -> str:
    """The message that a heartbeat's run gets; with `research` it may have something looked into."""
    lines = [
        f"{each.number}. [{each.code}] {each.text}. Recommended: {each.recommendation[1]}"
        for each in explained
    ]
    told = [TASK, RESEARCH] if research else [TASK]
    return "\n".join([*told, "", "Findings of this conversation:", *lines])


TASK = """This is your heartbeat: nobody has asked for it, and nobody waits. Gofer has looked at its records of this \
conversation and found the things below. Decide whether a person here would want to hear of them now. Most of the \
time silence is right; a message has to be worth the interruption. With `recall` you may look up what was said before.

Your answer is not sent to anybody. It is read by a program, so answer with one JSON object and nothing else, one of:
{"do": "silent", "why": "in a few words"}
{"do": "nudge", "findings": [1], "text": "one to three plain sentences for the people here", "actions": [{"label": \
"a button's few words", "say": "what the person says to you by pressing it", "goal": false}]}
`actions` may be empty and has at most three; with "goal": true, pressing makes a goal that is planned and done in \
tasks. Gofer adds why the message came and a button to stop such messages."""
RESEARCH = """Or, where looking something up now would clearly save somebody time, have a worker look into it. It \
reads files, pages and memories and changes nothing; what it finds is then told as a nudge. This costs money, so it \
has to be worth it:
{"do": "research", "findings": [1], "title": "a few words", "instructions": "what to find out, complete in itself", \
"rationale": "why it is worth it, for the people here"}"""
