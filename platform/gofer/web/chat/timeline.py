"""What a page shows of a conversation, read from the store: all of it, or what changed after a place in the log.

Each item has an id that stays, so a page that gets one twice shows it once, and one that was away asks for what
came after the last place it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, literal_column, select, tuple_

from gofer.jobs.children import FOR_ALL, FOR_ANY
from gofer.jobs.kinds import ANSWER
from gofer.store import events as log
from gofer.store.encryption import conversation_key, unseal
from gofer.store.events import Cursor
from gofer.store.messages import open_for_people
from gofer.store.tables import (
    LIVE,
    SCHEDULE,
    JobState,
    ReplyState,
    bindings,
    events,
    goals,
    in_state,
    jobs,
    messages,
    questions,
    replies,
    tasks,
)
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.redaction import Redactor

PAGE = 40
"""Messages of people shown at once; older ones are a click away."""
AT_ONCE = 500

_BY_JOB = frozenset({"question.answered", "question.expired", "question.withdrawn", "job.cancel_requested"})
_OF_RUNS = ("turn.slow", "turn.finished", "tool.started", "tool.finished")


@dataclass(frozen=True, slots=True)
class AtWork:
    """What the agent is at."""

    state: str
    """idle, queued, working, waiting or retrying."""
    jobs: frozenset[int]
    """The runs that are not over: of no other one there are words to come."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Items in order, and the place in the log after them."""

    items: list[dict[str, Any]]
    cursor: Cursor
    at_work: AtWork
    earlier: int | None = None
    """The number of the message before which there are more; None when there are none."""
    more: Any = None
    """What whoever follows the conversation wanted to be read with it."""

    @property
    def state(self) -> str:
        """What the agent is at."""
        return self.at_work.state


@dataclass(slots=True)
class _Changed:
    """What the new rows of the log are about."""

    seqs: set[int] = field(default_factory=set)
    replies: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    """Jobs whose steps have changed …"""
    asking: set[int] = field(default_factory=set)
    """… and those whose questions have."""
    goals: set[str] = field(default_factory=set)


class Reader:
    """Reads one conversation."""

    def __init__(
        self, connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str
    ) -> None:
        self._connection = connection
        self._conversation_id = conversation_id
        self._redactor = redactor
        self._key: DataKey = conversation_key(connection, vault, conversation_id)

    def history(self, before: int | None = None) -> Timeline:
        """The last page of it, or the one before a message."""
        cursor = self._last_place()
        said, earlier = self._page(before)
        since = said[0]["at"] if said and earlier is not None else 0.0
        until = self._at(before)
        answers = self._replies(replies.c.created_at >= since, replies.c.created_at < until)
        done = [step for step in self._steps(self._jobs(since, until)) if since <= step["at"] < until]
        wanted = [card for card in self._goals() if since <= card["at"] < until]
        items = sorted([*said, *answers, *done, *wanted], key=lambda item: item["place"])
        return Timeline(items, cursor, self._at_work(), earlier)

    def now(self) -> Timeline:
        """No item; the place after all there is."""
        return Timeline([], self._last_place(), self._at_work())

    def news(self, cursor: Cursor) -> Timeline:
        """What changed after a place in the log."""
        rows = self.rows_after(cursor)
        if not rows:
            return Timeline([], cursor, self._at_work())
        changed = _changes(rows)
        items = [*self._messages(messages.c.seq.in_(changed.seqs)), *self._steps(self._answers(changed.jobs))]
        items += self._replies(replies.c.id.in_(changed.replies) | replies.c.job_id.in_(changed.asking))
        items += self._goals(goals.c.id.in_(changed.goals)) if changed.goals else []
        items.sort(key=lambda item: item["place"])
        return Timeline(items, Cursor(rows[-1].tx, rows[-1].id), self._at_work())

    def _at_work(self) -> AtWork:
        query = select(jobs.c.id, jobs.c.state, jobs.c.reason).where(
            jobs.c.conversation_id == self._conversation_id,
            jobs.c.kind == ANSWER,
            in_state(*LIVE, JobState.BLOCKED),
        )
        found = self._connection.execute(query).all()
        # A run that waits for its tasks is at work: nobody has to answer anything.
        states = {"running" if row.reason in (FOR_ALL, FOR_ANY) else row.state for row in found}
        known = {"running": "working", "waiting": "waiting", "scheduled": "retrying"}
        state = next(
            (word for state, word in known.items() if state in states), "queued" if states else "idle"
        )
        return AtWork(state, frozenset(row.id for row in found))

    # The log.

    def rows_after(self, cursor: Cursor) -> list[Any]:
        """The rows of the log after a place, in order; at most `AT_ONCE`."""
        query = (
            select(events.c.tx, events.c.id, events.c.kind, events.c.job_id, events.c.reply_id, events.c.data)
            .where(events.c.conversation_id == self._conversation_id, self._after(cursor))
            .where(settled(self._connection))
            .order_by(*self._order)
            .limit(AT_ONCE)
        )
        return list(self._connection.execute(query))

    def _last_place(self) -> Cursor:
        query = (
            select(events.c.tx, events.c.id)
            .where(events.c.conversation_id == self._conversation_id)
            .where(settled(self._connection))
            .order_by(*(column.desc() for column in self._order))
            .limit(1)
        )
        row = self._connection.execute(query).first()
        return Cursor() if row is None else Cursor(row.tx, row.id)

    @property
    def _order(self) -> list[Any]:
        # SQLite has one writer, so ids alone are the order, and the index of a conversation's events has it.
        on_sqlite = self._connection.dialect.name == "sqlite"
        return [events.c.id] if on_sqlite else [events.c.tx, events.c.id]

    def _after(self, cursor: Cursor) -> Any:
        if self._connection.dialect.name == "sqlite":
            return events.c.id > cursor.id
        return tuple_(events.c.tx, events.c.id) > tuple_(cursor.tx, cursor.id)

    # What people said.

    def _page(self, before: int | None) -> tuple[list[dict[str, Any]], int | None]:
        where = [] if before is None else [messages.c.seq < before]
        found = self._messages(*where, limit=PAGE + 1)
        if len(found) <= PAGE:
            return found, None
        return found[1:], found[1]["seq"]

    def _at(self, before: int | None) -> float:
        if before is None:
            return float("inf")
        query = select(messages.c.created_at).where(
            messages.c.conversation_id == self._conversation_id, messages.c.seq == before
        )
        return float(self._connection.execute(query).scalar() or 0)

    def _messages(self, *where: Any, limit: int = AT_ONCE) -> list[dict[str, Any]]:
        query = (
            select(messages)
            .where(messages.c.conversation_id == self._conversation_id, messages.c.connection_id.is_not(None))
            .where(
                messages.c.event.in_(("message", "command", "goal", SCHEDULE)),
                messages.c.sealed.is_not(None),
                *where,
            )
            .order_by(messages.c.seq.desc())
            .limit(limit)
        )
        return [self._message(row) for row in reversed(self._connection.execute(query).all())]

    def _message(self, row: Any) -> dict[str, Any]:
        message = open_for_people(self._key, row)
        return {
            "id": f"said-{row.seq}",
            "kind": "said",
            "at": row.created_at,
            "place": place(row.created_at, 0, row.seq),
            "seq": row.seq,
            "client_id": row.external_id.rpartition(":")[2],
            "author": self._redactor.redact(message.author.name),
            "text": self._redactor.redact(message.text),
            "files": [
                {
                    "hash": file.ref.removeprefix("blob:"),
                    "name": file.name,
                    "media_type": file.media_type,
                    "size": file.size,
                }
                for file in message.attachments
            ],
        }

    # What was answered.

    def _replies(self, *where: Any) -> list[dict[str, Any]]:
        query = (
            select(replies, jobs.c.state.label("job_state"))
            .outerjoin(jobs, jobs.c.id == replies.c.job_id)
            # What a job of this conversation says elsewhere, such as a question to the owners, is not for this page.
            .join(bindings, bindings.c.id == replies.c.binding_id)
            .where(bindings.c.conversation_id == self._conversation_id)
            .where(replies.c.conversation_id == self._conversation_id, replies.c.sealed.is_not(None))
            .where(replies.c.state == ReplyState.SENT, *where)
            .order_by(replies.c.id)
        )
        return [self._reply(row) for row in self._connection.execute(query).all()]

    def _reply(self, row: Any) -> dict[str, Any]:
        content = unseal(self._key, row.sealed, "reply", row.job_id, row.kind, row.part)
        question, choices = content.get("question", ""), list(content.get("choices", ()))
        return {
            "id": f"reply-{row.id}",
            "kind": "reply",
            "at": row.created_at,
            "place": place(row.created_at, 2, row.id),
            "job": row.job_id,
            "error": row.kind == "error" and row.job_state != JobState.CANCELLED,
            "stopped": row.kind == "error" and row.job_state == JobState.CANCELLED,
            "text": self._redactor.redact(_without_choices(content["text"], choices)),
            "question": question,
            "choices": [self._redactor.redact(choice) for choice in choices],
            **self._answered(question),
        }

    def _answered(self, question_id: str) -> dict[str, Any]:
        """Whether a question is still open, and what was answered to it."""
        query = select(questions.c.answered_at, questions.c.answer).where(questions.c.id == question_id)
        row = self._connection.execute(query).first() if question_id else None
        if row is None or row.answer is None:
            return {"open": row is not None and row.answered_at is None, "answer": ""}
        said = unseal(self._key, row.answer, "answer", question_id)
        return {"open": False, "answer": self._redactor.redact(said["text"])}

    # What was done.

    def _jobs(self, since: float, until: float) -> list[int]:
        """The runs that may have done something in a span of time."""
        query = select(jobs.c.id).where(
            jobs.c.conversation_id == self._conversation_id,
            jobs.c.kind == ANSWER,
            jobs.c.created_at < until,
            jobs.c.finished_at.is_(None) | (jobs.c.finished_at >= since),
        )
        return list(self._connection.execute(query).scalars())

    def _answers(self, job_ids: set[int]) -> list[int]:
        """Those of some jobs that answer the conversation: the steps of a goal's tasks are on the goal's page."""
        query = select(jobs.c.id).where(jobs.c.id.in_(job_ids), jobs.c.kind == ANSWER)
        return list(self._connection.execute(query).scalars())

    def _steps(self, job_ids: Iterable[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for job_id in sorted(job_ids):
            rows = [row for row in log.of_job(self._connection, job_id) if row["kind"] in _OF_RUNS]
            found += steps_of(self._key, job_id, rows, self._redactor)
        return found

    # What is wanted.

    def _goals(self, *where: Any) -> list[dict[str, Any]]:
        """One card for each goal, with its plan as it is now."""
        query = select(goals).where(
            goals.c.conversation_id == self._conversation_id, goals.c.sealed.is_not(None)
        )
        return [self._goal(row) for row in self._connection.execute(query.where(*where)).all()]

    def _goal(self, row: Any) -> dict[str, Any]:
        query = select(tasks).where(
            tasks.c.goal_id == row.id, tasks.c.number > 0, tasks.c.sealed.is_not(None)
        )
        steps = self._connection.execute(query.order_by(tasks.c.number)).all()
        marks = {"done": "✓", "running": "▸", "failed": "✗", "blocked": "?", "dropped": "–"}
        lines = [
            f"{marks.get(step.state, '·')} {step.number}. {unseal(self._key, step.sealed, 'task', step.id)['title']}"
            for step in steps
        ]
        text = "\n".join([f"Goal, {row.state}: /goals/{row.id}", *lines])
        return {
            "id": f"goal-{row.id}",
            "kind": "aside",
            "at": row.created_at,
            "place": f"{row.created_at:017.6f}.1.{row.job_id or 0:012d}.000",
            "job": row.job_id,
            "text": self._redactor.redact(text),
        }


def settled(connection: Connection) -> Any:
    """The condition for settled rows: on Postgres, those before which no open transaction can still put one."""
    if connection.dialect.name != "postgresql":
        return literal_column("1 = 1")
    return events.c.tx < literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


def place(at: float, rank: int, number: int) -> str:
    """Where an item stands: by time, then what was said before what was done before what was answered."""
    return f"{at:017.6f}.{rank}.{number:012d}"


def _changes(rows: Iterable[Any]) -> _Changed:
    changed = _Changed()
    for row in rows:
        if row.kind in ("delivery.accepted", "message.admitted") and row.data.get("seq") is not None:
            changed.seqs.add(int(row.data["seq"]))
        elif row.kind.startswith("reply.") and row.reply_id is not None:
            changed.replies.add(row.reply_id)
        elif row.kind in _OF_RUNS and row.job_id is not None:
            changed.jobs.add(row.job_id)
        elif row.kind in _BY_JOB and row.job_id is not None:
            changed.asking.add(row.job_id)
        elif row.kind.startswith(("goal.", "task.")) and row.data.get("goal"):
            changed.goals.add(str(row.data["goal"]))
    return changed


def _without_choices(text: str, choices: list[str]) -> str:
    """The question alone: its choices are buttons here."""
    return text.removesuffix("".join(f"\n- {choice}" for choice in choices)) if choices else text


MAX_SHOWN = 20_000
"""Characters of one call's arguments or output on the page; the whole of it is in the run's own page."""


def steps_of(
    key: DataKey, job_id: int, rows: Iterable[dict[str, Any]], redactor: Redactor
) -> list[dict[str, Any]]:
    """The steps of one job, in order."""
    steps: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for row in rows:
        data = {**row["data"], **log.open_words(key, row)}
        if row["kind"] == "turn.finished":
            made = list(_turn(job_id, row, data, redactor))
            steps += made
            calls |= {step["call"]: step for step in made if step["kind"] == "step"}
        elif row["kind"] == "turn.slow":
            steps.append(_slow(job_id, row))
        elif data["call_id"] in calls:
            done = row["kind"] == "tool.finished"
            calls[data["call_id"]].update(_finished(data, redactor) if done else {"status": "running"})
    return steps


SLOW = "The model takes long to begin. I go on as soon as it does."


def _slow(job_id: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"slow-{row['id']}",
        "kind": "aside",
        "at": row["at"],
        "place": f"{row['at']:017.6f}.1.{row['id']:012d}.000",
        "job": job_id,
        "text": SLOW,
    }


def _turn(
    job_id: int, row: dict[str, Any], data: dict[str, Any], redactor: Redactor
) -> Iterable[dict[str, Any]]:
    """A turn's calls, and its words if it has calls: without any, its words are the answer."""
    blocks = data["content"]
    if not any(block["type"] == "tool_use" for block in blocks):
        return
    for number, block in enumerate(blocks):
        base = {
            "at": row["at"],
            "place": f"{row['at']:017.6f}.1.{row['id']:012d}.{number:03d}",
            "job": job_id,
        }
        if block["type"] == "text" and block["text"].strip():
            yield {
                **base,
                "id": f"aside-{row['id']}-{number}",
                "kind": "aside",
                "text": redactor.redact(block["text"]),
            }
        elif block["type"] == "tool_use":
            yield {**base, **_call(job_id, block, redactor)}


def _call(job_id: int, block: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    arguments = redactor.redact_value(block["input"])
    title, code, language = _title(block["name"], arguments if isinstance(arguments, dict) else {})
    return {
        "id": f"call-{job_id}-{block['id']}",
        "kind": "step",
        "call": block["id"],
        "name": block["name"],
        "title": title,
        "code": code[:MAX_SHOWN],
        "language": language,
        "status": "asked",
        "output": "",
        "exit_code": None,
        "took_ms": None,
        "diff": "",
        "file": None,
        "images": [],
        "cut": len(code) > MAX_SHOWN,
    }


def _title(name: str, arguments: dict[str, Any]) -> tuple[str, str, str]:
    """A line for the head of the card, and what to show inside with its language."""
    if name == "bash":
        command = str(arguments.get("command", ""))
        return command.strip().partition("\n")[0][:200], command, "bash"
    subject = next((key for key in ("path", "pattern", "url", "text") if key in arguments), "")
    # What was written or edited is shown as the change it made.
    rest = {key: value for key, value in arguments.items() if key not in (subject, "content", "edits")}
    lines = [f"{key}: {value}" for key, value in rest.items()]
    return str(arguments.get(subject, ""))[:200], "\n".join(lines), ""


def _finished(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    details = data.get("details") or {}
    output = redactor.redact(str(data.get("content", "")))
    return {
        "status": data["status"] if not data.get("timed_out") else "timed out",
        "output": output[:MAX_SHOWN],
        "cut": len(output) > MAX_SHOWN,
        "exit_code": data.get("exit_code"),
        "took_ms": data.get("took_ms"),
        "diff": redactor.redact(str(details.get("diff", "")))[:MAX_SHOWN],
        "file": details.get("file"),
        "images": [image for image in data.get("images", ()) if image.get("blob")],
    }
