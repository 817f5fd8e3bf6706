"""The Trigger: the answer job of an external agent. It wakes the agent, waits for it, and goes on without it.

The job's only state is its hops. Each run looks at them under the conversation's lock, ends the one whose time is over,
makes the next, and sleeps without a slot until something changes or the deadline comes. So it can be killed anywhere
and started again, and no hop is made twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, insert, select, update

from gofer.crash import crash_point
from gofer.errors import ConfigError, NotFound
from gofer.jobs.kinds import ANSWER
from gofer.jobs.notifications import JOBS, Signals
from gofer.jobs.outcome import Cancel, Dead, Done, Outcome, Snooze
from gofer.jobs.queue import Claim, submit
from gofer.jobs.wait_reasons import NOTICED, clock_time
from gofer.jobs.worker import Run
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.answer import CANCELLED, TRIGGER, Drafting
from gofer.runtimes import hops as hop_rows
from gofer.runtimes.callback import CallbackSender
from gofer.runtimes.chain import ChainRules, Step, next_hop
from gofer.runtimes.hops import (
    ANSWERED,
    DELIVERED,
    FAILED,
    HANDED_OVER,
    OPEN,
    QUEUED,
    READ,
    TAKEN,
)
from gofer.runtimes.records import CALLBACK, facts_of, runtime_for
from gofer.runtimes.safeguards import RATE, SafeguardRules, room_after, why_not
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_AGENT
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.messages import StoredMessage
from gofer.store.tables import agents, conversations, jobs, participants

log = structlog.get_logger()

CLOSED = "conversation.closed"
MAX_RATE_WAIT = 2 * 3600.0
"""Seconds after which a Trigger that the rates hold back is given up."""
SORRY = {
    CLOSED: "I did not wake {agent}: this conversation is closed.",
    RATE: "I did not wake {agent}: it was asked too often. Ask again later.",
    "blocked.loop.no_progress": "I did not wake {agent}: it went on for long without a word from anybody here. "
    "Somebody who may can unblock it: `gofer runtimes unblock`.",
    "blocked.loop.same_words": "I did not wake {agent}: it said the same again and again. Somebody who may can "
    "unblock it: `gofer runtimes unblock`.",
}
WAITS = (
    "{agent} was asked too often within an hour. Your question waits until {until}; nobody has to ask again."
)
UNREACHED = "{agent} could not be reached ({reason}), and nobody stands in for it. Ask again once it is back."


def chain_rules(settings: Settings, *, fallback: bool) -> ChainRules:
    """The bounds of the chain, as the settings say."""
    return ChainRules(fallback, settings.runtime_resume_within, settings.runtime_crashes)


def safeguard_rules(settings: Settings) -> SafeguardRules:
    """How much is too much, as the settings say."""
    return SafeguardRules(
        settings.trigger_turns,
        settings.trigger_findings,
        settings.triggers_per_agent,
        settings.triggers_per_conversation,
    )


def fallback_of(files: AgentFiles, spec: AgentSpec) -> AgentSpec | None:
    """The agent of Gofer's own that stands in for an external one; None when there is none that could."""
    name = spec.external.fallback
    if not name:
        return None
    try:
        found = files.get(name)
    except NotFound:
        return AgentSpec(name=name) if name == FIRST_AGENT else None
    except ConfigError:
        return None
    return found if found.runtime is None else None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the hops led to: what the job does now."""

    do: str
    """sleep, call (a callback is to be made), done, dead or refused."""
    after: float = 0
    reason: str = ""
    covers_to: int = 0
    hop: int = 0


@dataclass(eq=False, repr=False, kw_only=True)
class Triggers:
    """Handles the answer jobs of external agents."""

    settings: Settings
    database: Database
    agents: AgentFiles
    signals: Signals
    callbacks: CallbackSender

    async def handle(
        self, run: Run, spec: AgentSpec, admitted: Sequence[StoredMessage], draft: Drafting
    ) -> Outcome:
        """Look once, and act on it."""
        claim = run.claim
        if claim.cancel_requested or run.cancelled.is_set():
            await self.database.write(partial(hop_rows.cancel_open, claim=claim))
            return Cancel(CANCELLED)
        crash_point("trigger.looking")
        look = await self.database.write(partial(self._look, claim=claim, spec=spec, admitted=admitted))
        crash_point("trigger.looked")
        if look.do == "call":
            await self.callbacks.call(claim, look.hop, spec.external.ack_within)
            crash_point("trigger.called")
            look = await self.database.write(partial(self._look, claim=claim, spec=spec, admitted=admitted))
        self.signals.wake(JOBS)  # hosts wait for orders on the same topic
        return await self._outcome(look, spec, draft)

    async def _outcome(self, look: Look, spec: AgentSpec, draft: Drafting) -> Outcome:
        if look.do in ("sleep", "call"):
            held = look.reason == RATE and look.after >= NOTICED
            said = await draft(self._waits(spec, look.after), "note") if held else ()
            return Snooze(max(look.after, 0.05), look.reason, drafts=said)
        if look.do == "done":
            return Done(included_to=look.covers_to, reason=look.reason)
        words = SORRY.get(look.reason, UNREACHED).format(agent=spec.name, reason=look.reason)
        drafts = await draft(words)
        if look.do == "refused":
            return Done(drafts, included_to=look.covers_to, reason=look.reason)
        return Dead(look.reason, drafts, included_to=look.covers_to)

    def _waits(self, spec: AgentSpec, after: float) -> str:
        until = clock_time(time.time() + after, self.settings.timezone, today=time.time())
        return WAITS.format(agent=spec.name, until=until)

    def _look(
        self, connection: Connection, claim: Claim, spec: AgentSpec, admitted: Sequence[StoredMessage]
    ) -> Look:
        """Move the Trigger on by one step, in one transaction."""
        hop_rows.locked(connection, claim)
        rows = hop_rows.hops_of_drive(connection, claim.id)
        last = rows[-1] if rows else None
        if last is not None and last.state in OPEN:
            left = last.deadline - last.now
            if left > 0:
                return self._asleep(last, left, spec)
            if not hop_rows.expire(connection, last, spec.external.ack_within):
                return Look("sleep", hop_rows.TAKE_WITHIN, hop_rows.HOST_LOST)
            rows = hop_rows.hops_of_drive(connection, claim.id)
            last = rows[-1]
        if last is not None and (ended := self._ended(last)) is not None:
            return ended
        return self._next(connection, claim, spec, rows, admitted)

    def _asleep(self, row: Any, left: float, spec: AgentSpec) -> Look:
        """The longest sleep for where a hop stands: a clock that jumps must not make it longer."""
        longest = {
            QUEUED: hop_rows.TAKE_WITHIN,
            TAKEN: hop_rows.LEASE,
            DELIVERED: spec.external.ack_within,
        }.get(row.state, spec.external.answer_within)
        return Look("sleep", min(left, longest), f"hop.{row.state}", hop=row.number)

    def _ended(self, row: Any) -> Look | None:
        """The end of the Trigger, if its last hop is one."""
        if row.state in (ANSWERED, READ):
            return Look("done", covers_to=row.covers_to, reason="" if row.state == ANSWERED else "read")
        if row.action == "fallback" and row.state != FAILED:
            return Look("done", covers_to=row.covers_to, reason="fallback")
        if row.action == "dead_letter":
            return Look("dead", covers_to=row.covers_to, reason=row.reason)
        return None

    def _next(
        self,
        connection: Connection,
        claim: Claim,
        spec: AgentSpec,
        rows: list[Any],
        admitted: Sequence[StoredMessage],
    ) -> Look:
        asked_to = int(claim.payload.get(TRIGGER, {}).get("to", 0))
        read_to = admitted[-1].seq if admitted else claim.covers_from
        covers_to = max((read_to, asked_to, *(row.covers_to for row in rows)))
        if not rows and (refused := self._refused(connection, claim, spec, covers_to)) is not None:
            return refused
        assert spec.runtime is not None
        every = self.settings.runtime_heartbeat
        runtime = runtime_for(connection, str(claim.agent_id), spec.runtime, every)
        facts = facts_of(runtime, every) if runtime is not None else None
        rules = chain_rules(self.settings, fallback=fallback_of(self.agents, spec) is not None)
        step = next_hop(hop_rows.tried(rows), facts, rules)
        if step.after and rows[-1].ended_at is not None:
            left = rows[-1].ended_at + step.after - rows[-1].now
            if left > 0:
                return Look("sleep", min(left, step.after), step.why)
        return self._make(connection, claim, spec, step, runtime, covers_to)

    def _make(
        self, connection: Connection, claim: Claim, spec: AgentSpec, step: Step, runtime: Any, covers_to: int
    ) -> Look:
        if step.action == "dead_letter":
            hop_rows.add_hop(
                connection, claim, step, runtime=None, covers_to=covers_to, state=FAILED, reason=step.why
            )
            return Look("dead", covers_to=covers_to, reason=step.why)
        if step.action == "fallback":
            made = _hand_over(connection, claim, spec.external.fallback, covers_to)
            state = HANDED_OVER if made else FAILED
            hop_rows.add_hop(
                connection, claim, step, runtime=None, covers_to=covers_to, state=state, reason=step.why
            )
            if not made:
                return Look("sleep", 0, "fallback.failed")
            return Look("done", covers_to=covers_to, reason="fallback")
        calls = runtime.kind == CALLBACK
        number = hop_rows.add_hop(
            connection, claim, step, runtime=runtime, covers_to=covers_to, state=TAKEN if calls else QUEUED
        )
        return Look("call" if calls else "sleep", hop_rows.TAKE_WITHIN, f"hop.{step.action}", hop=number)

    def _refused(self, connection: Connection, claim: Claim, spec: AgentSpec, covers_to: int) -> Look | None:
        """Why a Trigger does not begin, if it does not."""
        row = connection.execute(
            select(participants, conversations.c.closed_at)
            .join(conversations, conversations.c.id == participants.c.conversation_id)
            .where(participants.c.id == claim.participant_id)
        ).one()
        asked = claim.payload.get(TRIGGER, {})
        if row.closed_at is not None and not spec.external.wake_when_closed:
            return Look("refused", covers_to=covers_to, reason=CLOSED)
        if row.ack_seq is not None and row.ack_seq >= max(covers_to, row.wake_seq) and not asked:
            return Look("done", covers_to=covers_to, reason="read")
        if asked.get("force"):
            return None
        rules = safeguard_rules(self.settings)
        why = why_not(connection, row, rules, claim.id)
        if why != RATE:
            return Look("refused", covers_to=covers_to, reason=why) if why else None
        waited = connection.execute(_WAITED, {"job": claim.id}).scalar_one()
        if waited > MAX_RATE_WAIT:
            return Look("refused", covers_to=covers_to, reason=RATE)
        return Look("sleep", room_after(connection, row, rules, claim.id), RATE)


_WAITED = select(now() - jobs.c.created_at).where(jobs.c.id == bindparam("job"))


def stand_in_key(trigger: int, fence: int) -> str:
    """The unique key of the fallback answer to a Trigger."""
    return f"fallback:{trigger}:{fence}"


def _hand_over(connection: Connection, claim: Claim, name: str, covers_to: int) -> bool:
    """Let another agent answer what a Trigger covers, as an ordinary answer of its own in the same conversation;
    returns whether there is such an agent. Conversation locked, fence held."""
    row = connection.execute(
        select(agents).where(agents.c.workspace_id == claim.workspace_id, agents.c.name == name)
    ).one_or_none()
    if row is None or not row_macs.fits(connection, agents, row):
        return False
    here = (participants.c.conversation_id == claim.conversation_id) & (participants.c.agent_id == row.id)
    participant_id = connection.execute(select(participants.c.id).where(here)).scalar()
    if participant_id is None:
        participant_id = new_id("part")
        cursors = {"read_seq": claim.covers_from, "wake_seq": 0, "epoch_seq": 0, "priority": claim.priority}
        where = {"conversation_id": claim.conversation_id, "agent_id": row.id}
        connection.execute(insert(participants).values(id=participant_id, **where, **cursors))
    made = submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=ANSWER,
        lane=participant_id,
        priority=claim.priority,
        payload={"stands_in_for": claim.id},
        conversation_id=claim.conversation_id,
        participant_id=participant_id,
        agent_id=row.id,
        connection_id=claim.connection_id,
        covers_from=claim.covers_from,
        unique_key=stand_in_key(claim.id, claim.fence),
    )
    # It answers what the Trigger covers and nothing that came later, which wakes agents of its own accord.
    connection.execute(update(jobs).where(jobs.c.id == made).values(covers_to=covers_to))
    return made is not None
