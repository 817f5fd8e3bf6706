"""Handles the jobs that drive goals: has each pass made, asks, shows how far it is, and says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.agent.models.offline import LABEL as OFFLINE
from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.crash import crash_point
from gofer.errors import NotFound
from gofer.goals import records
from gofer.goals.driver import Ask, GoalEnd, Pass, Pause, Rules, WaitForTasks, advance
from gofer.goals.report import announcement, report
from gofer.goals.tasks import REPORT
from gofer.identity import WEB_CHAT
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.outcome import OWNERS, Cancel, Dead, Done, Draft, Outcome, Snooze, Wait, WaitForJobs
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.outbox.role_questions import private_chats
from gofer.runs.agent_files import AgentFiles, in_force
from gofer.sanitize import defuse
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.messages import binding_of
from gofer.store.tables import bindings, goals, replies, tasks
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

ANSWER_WITHIN = 7 * 86400.0
QUIET_ENDS = frozenset({"declined"})
"""Reasons of goals that never began: nobody waits for a report."""
BY_WORDS = "Answer with `/goal {id}` and your answer."
GIVEN_UP = "I had to give this goal up ({reason}). `/goals` shows how far it got; ask again to have it done."
STOPPED = "This goal was stopped. `/goals` shows how far it got."

Show = Callable[[Claim, bool], None]
"""Shows how far a goal is, and that it is over. Contract: neither blocks nor raises."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a goal was asked for."""

    binding_id: str
    ref: str
    connected: LoadedConnection
    signature: str = ""
    """What a reply begins with, where there are several agents."""

    @property
    def keeps_up_to_date(self) -> bool:
        """Whether what is shown there changes with the goal."""
        own_page = self.connected.integration.name == WEB_CHAT and not self.connected.account.settings.get(
            "reply_url"
        )
        return own_page or bool(self.connected.integration.progress_every)


@dataclass(eq=False, repr=False, kw_only=True)
class GoalDriver:
    """Handles goal jobs."""

    settings: Settings
    database: Database
    vault: Vault
    accounts: LoadedConnections
    redactor: Redactor
    signals: Signals
    agents: AgentFiles
    show: Show = lambda claim, over: None

    async def handle(self, run: Run) -> Outcome:
        """Take the goal one pass further."""
        claim = run.claim
        try:
            place = await self._place(claim)
            settings = self.settings
            announced = partial(self._announced, place=place)
            rules = Rules(settings.goal_parallel, announced, settings.memory_v1)
            verb = partial(advance, vault=self.vault, claim=claim, rules=rules)
            this, step = await self.database.write(verb)
        except NotFound:
            return Dead("purged")
        crash_point("goal.advanced")
        self.signals.wake(JOBS)
        self.signals.wake(EVENTS)
        self.show(claim, isinstance(step, GoalEnd))
        match step:
            case WaitForTasks(job_ids):
                return WaitForJobs(waits_for=job_ids, any=True)
            case Ask():
                return await self._ask(claim, this, step, place)
            case Pause(seconds):
                return Snooze(seconds, "goal.paused")
            case GoalEnd(state, reason):
                final = await self._report(this, place) if reason not in QUIET_ENDS else ()
                crash_point("goal.reporting")
                if state == "cancelled":
                    return Cancel(reason or "cancelled", final)
                return Done(final, reason="" if state == "done" else reason)

    async def _place(self, claim: Claim) -> Place | None:
        """Where to answer; None when its connection is gone."""
        row = await self.database.read(partial(_binding, claim=claim))
        if row is None:
            return None
        several = len(in_force(await asyncio.to_thread(self.agents.look))) > 1
        name = await self.database.read(partial(_agent_of, claim=claim)) if several else ""
        signature = f"**{name}**\n\n" if name else ""
        return Place(row.id, row.ref, await self.accounts.get(row.connection_id), signature)

    def _announced(self, this: Pass, place: Place | None) -> tuple[Draft, ...]:
        """The plan as a message of its own, where none can be kept up to date."""
        if place is None or place.keeps_up_to_date:
            return ()
        reply = str(((this.plans[-1].result or {}).get("plan") or {}).get("reply") or "")
        return self._drafts(this, place, announcement(reply, this.steps), "note")

    async def _ask(self, claim: Claim, this: Pass, ask: Ask, place: Place | None) -> Outcome:
        text = ask.text + "".join(f"\n- {choice}" for choice in ask.choices)
        if not ask.choices or (place is not None and not place.connected.integration.has_buttons):
            text = f"{text}\n\n{BY_WORDS.format(id=this.goal.id)}"
        drafts = self._drafts(this, place, text, "note") if place is not None else ()
        if ask.of_owners:
            drafts += await self._in_private(claim, text, {draft.binding_id for draft in drafts})
        asked_of = OWNERS if ask.of_owners else this.goal.asked_by
        return Wait(ask.text, ask.about, asked_of, ANSWER_WITHIN, drafts, choices=ask.choices)

    async def _in_private(self, claim: Claim, text: str, told: set[str]) -> tuple[Draft, ...]:
        connected = await self.accounts.all()
        owners = partial(_owners, connected=connected, workspace_id=claim.workspace_id)
        found = await self.database.read(owners)
        return tuple(
            Draft(binding, tuple(one.integration.split(text)), "note")
            for one, binding in found
            if binding not in told
        )

    async def _report(self, this: Pass, place: Place | None) -> tuple[Draft, ...]:
        """The one final reply."""
        goal = this.goal
        if place is None or await self.database.read(partial(_was_reported, job_id=goal.job_id)):
            return ()  # somebody ran the job of an ended goal again
        written = [task.result or {} for task in this.tasks if task.kind == REPORT]
        words = str(written[-1].get("summary") or "") if written else ""
        if words.startswith(OFFLINE):
            words = ""  # it writes no reports; what came of the tasks stands for itself
        seconds = await self.database.read(partial(_age, goal_id=goal.id))
        base = self.settings.public_url.rstrip("/")
        text = report(
            goal.state,
            goal.reason,
            this.steps,
            words=words,
            dollars=goal.spent / 1e6,
            seconds=seconds,
            url=f"{base}/goals/{goal.id}" if base else "",
        )
        return self._drafts(this, place, text, "error" if goal.state == "cancelled" else "final")

    def _drafts(self, this: Pass, place: Place, text: str, kind: Any) -> tuple[Draft, ...]:
        goal, asked = this.goal, this.asked
        text = self.redactor.redact(text)
        if goal.narrowed:
            text = defuse(text, here=place.ref, people=(asked.name,))
        integration = place.connected.integration
        parts = tuple(integration.split(place.signature + integration.with_commands(text)))
        ended = "" if kind == "note" or goal.state == "done" else goal.reason
        stopped_by = "cancelled" if ended and goal.state == "cancelled" else ended
        return (
            Draft(
                place.binding_id,
                parts,
                kind,
                asked.external_id,
                asked.facts,
                stopped_by,
                place.signature,
                narrowed=goal.narrowed,
            ),
        )


def _agent_of(connection: Connection, claim: Claim) -> str:
    goal = connection.execute(
        select(goals.c.agent_id).where(goals.c.id == str(claim.payload["goal"]))
    ).scalar()
    return records.agent_name(connection, str(goal))


def _binding(connection: Connection, claim: Claim) -> Any:
    binding_id = binding_of(connection, claim.conversation_id, claim.connection_id)
    return connection.execute(select(bindings).where(bindings.c.id == binding_id)).one_or_none()


def _owners(
    connection: Connection, connected: list[LoadedConnection], workspace_id: str
) -> list[tuple[LoadedConnection, str]]:
    return list(private_chats(connection, connected, workspace_id, ("owner",)))


def _was_reported(connection: Connection, job_id: int) -> bool:
    said = (replies.c.job_id == job_id) & replies.c.kind.in_(("final", "error"))
    return connection.execute(select(replies.c.id).where(said).limit(1)).first() is not None


def _age(connection: Connection, goal_id: str) -> float:
    query = select(now() - goals.c.created_at).where(goals.c.id == goal_id)
    return max(0.0, float(connection.execute(query).scalar() or 0))


def goal_apology(connection: Connection, claim: Claim, reason: str) -> tuple[Draft, ...]:
    """End the goal of a job that could not be gone on with, and say so. Called under the conversation's lock."""
    goal = connection.execute(select(goals).where(goals.c.id == str(claim.payload.get("goal")))).one_or_none()
    if goal is None or goal.state in records.OVER:
        return ()
    unfinished = (tasks.c.goal_id == goal.id) & tasks.c.finished_at.is_(None)
    connection.execute(
        update(tasks).where(unfinished).values(state="dropped", reason=reason, finished_at=now())
    )
    records.set_state(connection, goal, "cancelled" if reason == "cancelled" else "failed", reason)
    binding = binding_of(connection, claim.conversation_id, claim.connection_id)
    if binding is None:
        return ()
    words = STOPPED if reason == "cancelled" else GIVEN_UP.format(reason=reason)
    return (Draft(binding, (words,), "error", stopped_by=reason),)
