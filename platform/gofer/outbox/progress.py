"""Progress: shows people that their message arrived and that work goes on. Decoration, and never in the way.

Each run that works for somebody has a companion, which shows progress until the run ends and then removes what it
showed. What was shown is stored, so that whoever ends the job, after whatever crash, can remove it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, delete, func, insert, select

from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.errors import NotFound
from gofer.integration import Incoming, PlanItem, Progress
from gofer.jobs.kinds import ANSWER, GOAL
from gofer.jobs.outcome import Cancel, Dead, Done, Outcome, Retry, Snooze, Wait, WaitForJobs
from gofer.jobs.queue import Claim
from gofer.outbox.ledger import ended_questions
from gofer.sanitize import defuse
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, unseal
from gofer.store.events import open_words
from gofer.store.messages import StoredMessage
from gofer.store.tables import (
    LIVE,
    JobState,
    Trust,
    attempts,
    bindings,
    events,
    goals,
    in_state,
    jobs,
    messages,
    showings,
    spends,
    tasks,
)
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Redactor

log = structlog.get_logger()
SWEEP_EVERY = 30.0
MAX_MESSAGES = 20
"""Messages of one run at which its end is shown."""
MAX_WORDS = 20_000
"""Characters of a turn that are kept to be shown: the last ones."""
LINGER = 3.0
"""Seconds that companions get to remove what they show when the process ends."""
SLOW_MODEL = "the model, which takes long to begin"
MICROS = 1_000_000
"""Spending is stored in millionths of a dollar."""


@dataclass(eq=False)
class Companion:
    """Shows the progress of one run."""

    claim: Claim
    connection_id: str
    ref: str
    waits_for: str = ""
    """What the run waits for after it has ended for now."""
    messages: list[Incoming] = field(default_factory=list)
    """What the run has read of those it works for."""
    words: str = ""
    """What the model is saying in this turn, so far."""
    shown_words: str = ""
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has ended, or when there are more words."""
    ended: bool = False

    def end(self) -> None:
        self.ended = True
        self.stirred.set()

    def hear(self, kind: str, data: dict[str, Any]) -> None:
        """Keep the words of the current turn."""
        if kind == "text.delta":
            self.words = (self.words + str(data["text"]))[-MAX_WORDS:]
            self.stirred.set()
        elif kind in ("turn.started", "turn.failed"):
            self.words = ""


class ProgressUpdater:
    """Companions of the runs of this process."""

    def __init__(self, *, database: Database, accounts: LoadedConnections, telling: RunSummary) -> None:
        self._database = database
        self._accounts = accounts
        self._telling = telling
        self._companions: dict[int, Companion] = {}
        self._goals: dict[int, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for what dead processes left on show."""
        self._sweeping = asyncio.create_task(self._keep_sweeping(), name="presence-sweep")

    async def close(self) -> None:
        """Give companions a moment to remove what they show."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for companion in self._companions.values():
            companion.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LINGER)
        for task in self._tasks:
            task.cancel()

    def noticed(self, claim: Claim, read: StoredMessage, fresh: bool) -> None:
        """A run reads a message: show that to its author, if it is somebody we work for. Never blocks or raises."""
        known = read.trust in (Trust.OWNER, Trust.MEMBER)
        if claim.kind != ANSWER or not known or not read.message.addressed or read.connection_id is None:
            return
        if fresh:
            self._spawn(self._notice(read))
        if claim.id not in self._companions:
            companion = Companion(claim, read.connection_id, read.message.conversation)
            self._companions[claim.id] = companion
            self._spawn(self._accompany(companion))
        companion = self._companions[claim.id]
        if read.connection_id == companion.connection_id and len(companion.messages) < MAX_MESSAGES:
            companion.messages.append(read.message)

    def heard(self, claim: Claim, kind: str, data: dict[str, Any]) -> None:
        """A run tells what it does: where what it asked is settled, its buttons go. Never blocks or raises."""
        if (companion := self._companions.get(claim.id)) is not None:
            companion.hear(kind, data)
        if kind == "tool.finished" and data["asked"]:
            self._spawn(end_questions(self._database, self._telling.vault, self._accounts, claim.id))

    def ended(self, claim: Claim, outcome: Outcome | None) -> None:
        """A run has ended, with None when it raised: its companion ends too. Never blocks or raises."""
        if (companion := self._companions.pop(claim.id, None)) is None:
            return
        companion.waits_for = _waits_for(outcome)
        companion.end()
        if (well := _ended_well(claim, outcome)) is not None:
            self._spawn(self._finish(companion, well))

    def goal_changed(self, claim: Claim, over: bool) -> None:
        """A goal is further than before, or over: show it where it was asked for. Never blocks or raises."""
        self._spawn(self._show_goal(claim.id, over))

    async def _show_goal(self, job_id: int, over: bool) -> None:
        # One after the other, and each reads how far the goal is by then: the last one shows the newest.
        async with self._goals.setdefault(job_id, asyncio.Lock()):
            place = await self._database.read(_goal_place, job_id=job_id)
            if place is None:
                return
            connected = await self._accounts.get(place.connection_id)
            if not connected.integration.progress_every:
                return
            shown = await self._database.read(_shown, job_id=job_id)
            if not over:
                progress = await self._database.read(self._telling.progress, job_id=job_id)
                await self._put(connected, job_id, place.ref, progress, shown)
            elif shown:
                await self._clear(connected, job_id, place.ref, shown)
        if over:
            self._goals.pop(job_id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - decoration must never cost a reply
            log.info("presence.failed", error=f"{type(error).__name__}: {error}")

    async def _notice(self, read: StoredMessage) -> None:
        connected = await self._accounts.get(str(read.connection_id))
        await connected.integration.acknowledge(read.message, connected.account)

    async def _finish(self, companion: Companion, well: bool) -> None:
        connected = await self._accounts.get(companion.connection_id)
        for message in companion.messages:
            await connected.integration.finish(message, well, connected.account)

    async def _accompany(self, companion: Companion) -> None:
        connected = await self._accounts.get(companion.connection_id)
        every = connected.integration.progress_every
        if not every:
            return
        shown = await self._database.read(_shown, job_id=companion.claim.id)
        words_every = connected.integration.words_every(companion.ref, connected.account)
        while not companion.ended:
            with contextlib.suppress(Exception):
                shown = await self._show(companion, connected, shown)
            await _until_something_is_new(companion, every, words_every)
        if companion.waits_for and connected.integration.shows_run_summary:
            shown = await self._show(companion, connected, shown)
        if shown:
            await self._clear(connected, companion.claim.id, companion.ref, shown)

    async def _show(self, companion: Companion, connected: LoadedConnection, shown: str) -> str:
        companion.shown_words = companion.words
        progress = await self._database.read(
            self._telling.progress,
            job_id=companion.claim.id,
            waits_for=companion.waits_for,
            words=companion.words,
        )
        return await self._put(connected, companion.claim.id, companion.ref, progress, shown)

    async def _put(
        self, connected: LoadedConnection, job_id: int, ref: str, progress: Progress, shown: str
    ) -> str:
        """Show progress, and keep what shows it, so that whoever ends the job can remove it."""
        new = await connected.integration.show_progress(ref, progress, shown, connected.account)
        if new and new != shown:
            via = connected.account.id
            keep = partial(_keep, job_id=job_id, connection_id=via, ref=ref, external_id=new)
            await self._database.write(keep)
        return new

    async def _clear(self, connected: LoadedConnection, job_id: int, ref: str, shown: str) -> None:
        await connected.integration.clear_progress(ref, shown, connected.account)
        await self._database.write(_forget, job_id=job_id)

    async def _keep_sweeping(self) -> None:
        while True:
            await self._quietly(self._sweep())
            await asyncio.sleep(SWEEP_EVERY)

    async def _sweep(self) -> None:
        """Remove what is still shown for jobs that nobody works on."""
        for row in await self._database.read(_left_behind):
            # Each for itself: a bot whose token was revoked must not keep what others show.
            await self._quietly(self._wipe(row))

    async def _wipe(self, row: Any) -> None:
        connected = await self._accounts.get(row.connection_id)
        await self._clear(connected, row.job_id, row.ref, row.external_id)


async def _until_something_is_new(companion: Companion, every: float, words_every: float) -> None:
    """Wait until the run has ended, or it is time; or until there are more words, but not too soon after the last."""
    gap = words_every or every
    await _wait(companion, gap, lambda: companion.ended)
    await _wait(companion, every - gap, lambda: companion.ended or companion.words != companion.shown_words)


async def _wait(companion: Companion, seconds: float, enough: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0, seconds)):
            while not enough():
                companion.stirred.clear()
                await companion.stirred.wait()


def _ended_well(claim: Claim, outcome: Outcome | None) -> bool | None:
    """Whether a run did what it was to do; None when it is not over."""
    match outcome:
        case Done(reason=reason):
            return not reason
        case Dead() | Cancel():
            return False
        case Retry() if claim.attempts >= claim.max_attempts:
            return False
        case _:
            return None


def _waits_for(outcome: Outcome | None) -> str:
    """What an unfinished run waits for, if people should know. A retry comes soon enough and is not told."""
    match outcome:
        case Wait():
            return "an answer"
        case WaitForJobs():
            return "its tasks"
        case Snooze(reason=reason) if reason.startswith("model."):
            return "the model's provider"
        case Snooze(reason=reason) if reason.startswith("service."):
            return "a service that makes us wait"
        case _:
            return ""


def _shown(connection: Connection, job_id: int) -> str:
    query = select(showings.c.external_id).where(showings.c.job_id == job_id)
    return connection.execute(query).scalar() or ""


def _keep(connection: Connection, job_id: int, connection_id: str, ref: str, external_id: str) -> None:
    _forget(connection, job_id)
    connection.execute(
        insert(showings).values(job_id=job_id, connection_id=connection_id, ref=ref, external_id=external_id)
    )


def _forget(connection: Connection, job_id: int) -> None:
    connection.execute(delete(showings).where(showings.c.job_id == job_id))


def _left_behind(connection: Connection) -> list[Any]:
    query = select(showings).join(jobs, jobs.c.id == showings.c.job_id)
    # A goal stays on show while its job waits for tasks and answers.
    at_work = in_state(JobState.RUNNING) | ((jobs.c.kind == GOAL) & in_state(*LIVE))
    return list(connection.execute(query.where(~at_work)).all())


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Reads from the log how a run is getting on, and masks secrets."""

    vault: Vault
    redactor: Redactor
    public_url: str

    def progress(self, connection: Connection, job_id: int, waits_for: str = "", words: str = "") -> Progress:
        """Read how far a run is."""
        if (goal := connection.execute(_GOAL, {"job": job_id}).first()) is not None:
            return self._goal_progress(connection, goal)
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

    def _goal_progress(self, connection: Connection, goal: Any) -> Progress:
        """How far a goal is."""
        key = conversation_key(connection, self.vault, goal.conversation_id)
        asked = unseal(key, goal.sealed, "goal", goal.id)
        steps = connection.execute(_STEPS, {"goal": goal.id}).all()
        lasting = connection.execute(_STABLE_ID, {"job": goal.job_id}).scalar() or ""
        paused = goal.state == "paused"
        waits_for = "somebody to resume it" if paused else "an answer" if goal.state == "blocked" else ""
        over = goal.finished_at is not None
        return Progress(
            seconds=max(0.0, (goal.finished_at or goal.current) - goal.created_at),
            steps=sum(step.state == "done" for step in steps),
            message=asked["external_id"],
            stable_id=lasting,
            waits_for=waits_for,
            goal=defuse(self.redactor.redact(" ".join(asked["text"].split())[:MAX_GOAL])),
            offers=()
            if over
            else (f"goal {'resume' if paused else 'pause'} {goal.id}", f"goal cancel {goal.id}"),
            plan=tuple(
                PlanItem(
                    defuse(self.redactor.redact(str(unseal(key, step.sealed, "task", step.id)["title"]))),
                    "doing"
                    if step.state == "queued" and step.job_id is not None
                    else STEP_STATES[step.state],
                )
                for step in steps
            ),
            cost=goal.cost / MICROS,
            url=f"{self.public_url.rstrip('/')}/goals/{goal.id}" if self.public_url else "",
        )


MAX_GOAL = 200
"""Characters of what is wanted that are shown with its progress."""
STEP_STATES: dict[str, Any] = {
    "queued": "open",
    "running": "doing",
    "done": "done",
    "failed": "dropped",
    "blocked": "open",
    "dropped": "dropped",
}


_COST_OF_GOAL = (
    select(func.coalesce(func.sum(spends.c.micros), 0))
    .where(spends.c.goal_id == goals.c.id)
    .scalar_subquery()
)
_GOAL = select(goals, now().label("current"), _COST_OF_GOAL.label("cost")).where(
    goals.c.job_id == bindparam("job"), goals.c.sealed.is_not(None)
)
_STEPS = (
    select(tasks)
    .where(tasks.c.goal_id == bindparam("goal"), tasks.c.number > 0, tasks.c.sealed.is_not(None))
    .order_by(tasks.c.number)
)
_GOAL_PLACE = (
    select(bindings.c.connection_id, bindings.c.ref, bindings.c.lasting)
    .join(goals, goals.c.conversation_id == bindings.c.conversation_id)
    .where(goals.c.job_id == bindparam("job"), bindings.c.connection_id == goals.c.connection_id)
    .order_by(bindings.c.id)
    .limit(1)
)
_STABLE_ID = _GOAL_PLACE.with_only_columns(bindings.c.lasting)


def _goal_place(connection: Connection, job_id: int) -> Any:
    return connection.execute(_GOAL_PLACE, {"job": job_id}).first()


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
    """How many seconds the run has worked, over all tries."""
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
        plan: list[dict[str, Any]] = open_words(key, row._asdict())["details"].get("plan", [])
    except (NotFound, Tampered):
        return []
    return plan


async def end_questions(database: Database, vault: Vault, accounts: LoadedConnections, job_id: int) -> None:
    """Take the buttons off a job's questions that were answered in words, elsewhere or too late. Never raises.

    Whoever presses a button that stayed is told that it is too late.
    """
    try:
        for connection_id, ref, external_id in await database.read(
            ended_questions, vault=vault, job_id=job_id
        ):
            connected = await accounts.get(connection_id)
            await connected.integration.end_question(ref, external_id, connected.account)
    except Exception as error:  # noqa: BLE001 - decoration must never cost a reply
        log.info("question.not_ended", error=f"{type(error).__name__}: {error}")
