"""The heartbeat's run: one small run of the agent that decides what to do about a conversation's findings.

Nobody asked for it. So it reads and does not write, has its own budget, and says nothing by itself: it answers what
should be done, and Gofer does that within the bounds. Killed anywhere, it goes on from its journal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from sqlalchemy import Connection, select

from gofer.agent.conversation import ConversationMessage, Covers, StopSignal
from gofer.agent.limits import LimitSettings, Scope, Short, micros
from gofer.agent.models.offline import Offline
from gofer.agent.outcome import Answered, Delegated, Failed, Stopped
from gofer.agent.outcome import Outcome as End
from gofer.agent.prices import load_prices
from gofer.crash import crash_point
from gofer.errors import ConfigError, NotFound
from gofer.goals.tasks import RESEARCH, TaskRecord, delegate_tasks, load_task
from gofer.heartbeat.brief import Explained, briefing, explain
from gofer.heartbeat.findings import clock
from gofer.heartbeat.nudges import MUTE, Nudge, NudgeAction, submit_nudge
from gofer.heartbeat.records import (
    DROPPED,
    LEDGER,
    MAX_RESEARCH,
    QUIET,
    RESEARCH_CALL,
    RESEARCH_MICROS,
    findings_of,
    holds_back,
    research_today,
    settle,
    spent_today,
)
from gofer.jobs.fence import hold
from gofer.jobs.outcome import Done, NewJob, Outcome, Retry, Snooze, WaitForJobs
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.memory.recall import Recall
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.build import NoHistory, Ports, build
from gofer.runs.heartbeat_settings import next_opening
from gofer.runs.memories import StoreMemories
from gofer.runs.model_keys import ModelKeys
from gofer.runs.proposals import RunIdentity
from gofer.runs.spend import StoreLedger, cost_of_job, reserve
from gofer.runs.spend import settle as settle_spend
from gofer.runs.store_adapters import StoreBlobs, StoreJournal, StoreQuestions
from gofer.sanitize import clean, defuse
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.store.locks import lock_conversation
from gofer.store.tables import agents, tasks
from gofer.tool import NewTask, Tier
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()
STEPS, MINUTES, TOKENS, OUTPUT_TOKENS = 4, 5, 100_000, 2000
"""What one run may use, beside the money."""
STALE = 86400.0
"""Seconds after which a finding that could not be told is dropped."""
LATER = 300.0
"""Seconds until the next try while somebody waits for an answer there."""
MAX_TEXT = 1000

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT)]


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProposedAction(_Decision):
    """A button, and what a person says by pressing it."""

    label: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
    say: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
    goal: bool = False


class SilenceDecision(_Decision):
    """Say nothing."""

    do: Literal["silent"]
    why: str = ""


class NudgeDecision(_Decision):
    """Write to the people of the conversation."""

    do: Literal["nudge"]
    findings: tuple[int, ...] = ()
    text: Text
    actions: Annotated[tuple[ProposedAction, ...], Field(max_length=3)] = ()


class ResearchDecision(_Decision):
    """Have a worker run look into something, and tell what it found."""

    do: Literal["research"]
    findings: tuple[int, ...] = ()
    title: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    instructions: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
    rationale: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]


Decision = SilenceDecision | NudgeDecision | ResearchDecision
_DECISION: TypeAdapter[Decision] = TypeAdapter(Annotated[Decision, Field(discriminator="do")])


def read_decision(text: str) -> Decision:
    """The decision of a run. Text that is no decision counts as silence."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return _DECISION.validate_python(json.loads(text[start : end + 1]))
    except (ValueError, RecursionError, ValidationError):
        return SilenceDecision(do="silent", why="its answer was no decision")


class BriefInbox:
    """The `Inbox` of a heartbeat's run: the findings, and nothing that people say meanwhile."""

    def __init__(self, text: str, run: Run) -> None:
        self._said = ConversationMessage(seq=1, author="Gofer", trust="member", text=text, background=True)
        self._run = run

    async def unread(self, after: int) -> Sequence[ConversationMessage]:
        return [self._said] if after < 1 else []

    async def stopped(self) -> StopSignal:
        await self._run.cancelled.wait()
        return StopSignal()

    def paused(self) -> bool:
        return False


class HeartbeatLedger(StoreLedger):
    """The `Ledger` of a heartbeat's run: its own budget of the day, within those that the agent has anyway."""

    def __init__(self, *, database: Database, claim: Claim, timezone: str, spec: AgentSpec) -> None:
        super().__init__(database=database, claim=claim, timezone=timezone)
        self._spec = spec

    async def reserve(
        self, key: str, amount: int, caps: Mapping[Scope, int], *, background: bool = False
    ) -> Short | None:
        verb = partial(
            _reserve, claim=self._claim, key=f"{LEDGER}{key}", amount=amount, caps=caps, timezone=self._timezone,
            spec=self._spec,
        )  # fmt: skip
        return await self._database.write(verb)

    async def settle(self, key: str, amount: int, model: str = "") -> None:
        verb = partial(settle_spend, claim=self._claim, key=f"{LEDGER}{key}", amount=amount, model=model)
        await self._database.write(partial(verb, timezone=self._timezone))


def _reserve(
    connection: Connection,
    claim: Claim,
    key: str,
    amount: int,
    caps: Mapping[Scope, int],
    timezone: str,
    spec: AgentSpec,
) -> Short | None:
    """Set money aside if the heartbeat's own budget and the agent's others allow it."""
    # The agent's lock comes first, so that two of its runs never share the last cent.
    connection.execute(select(agents.c.id).where(agents.c.id == claim.agent_id).with_for_update())
    own = caps.get("background", 0)
    spent = spent_today(connection, str(claim.agent_id), timezone, but=(claim.id, key))
    if spent + amount > own:
        return Short("background", spent)
    kept_back = micros(spec.heartbeat.budget) - own
    others: dict[Scope, int] = {**caps}
    others.pop("background", None)
    if spec.limits.background_day_dollars:
        others["background"] = micros(spec.limits.background_day_dollars) - kept_back
    return reserve(connection, claim, key, amount, others, timezone, background=True)


def own_limits(spec: AgentSpec) -> LimitSettings:
    """The limits of a heartbeat's run: small, and no more money than its budget."""
    budget = spec.heartbeat.budget
    return spec.limits.model_copy(
        update={
            "steps": STEPS,
            "active_minutes": MINUTES,
            "tokens": TOKENS,
            "output_tokens": min(OUTPUT_TOKENS, spec.limits.output_tokens),
            "job_dollars": min(budget, spec.limits.job_dollars or budget),
            "background_dollars": min(budget, spec.limits.background_dollars or budget),
            "background_day_dollars": budget,
        }
    )


@dataclass(frozen=True, slots=True)
class HeartbeatRuns:
    """Handles heartbeat jobs."""

    settings: Settings
    database: Database
    vault: Vault
    redactor: Redactor
    keys: ModelKeys
    agents: AgentFiles
    recall: Recall

    async def handle(self, run: Run) -> Outcome:
        """Run once if something is still due, and do what the run decided."""
        claim = run.claim
        try:
            return await self._handle(run)
        except (NotFound, ConfigError) as error:
            # The agent's file is gone, the conversation is purged, or no model can be had: nobody waits for this.
            log.info("heartbeat.dropped", job=claim.id, error=str(error))
            return await self._drop(claim, getattr(error, "code", "config"))

    async def _handle(self, run: Run) -> Outcome:
        claim, zone = run.claim, self.settings.timezone
        spec = await asyncio.to_thread(self.agents.get, str(claim.payload["agent"]))
        if not spec.heartbeat.enabled or spec.heartbeat.budget == 0:
            return await self._drop(claim, "switched off")
        at, explained = await self._still_due(claim, spec)
        if not explained:
            return Done()
        if not spec.heartbeat.is_time(at, zone):
            return await self._later(claim, at, next_opening(spec.heartbeat, at, zone), "heartbeat.night")
        end = await self._think(run, spec, explained)
        crash_point("heartbeat.decided")
        cost = await self.database.read(partial(cost_of_job, job_id=claim.id))
        match end:
            case Answered(text, _, _, narrowed):
                return await self._act(
                    claim, spec, explained, read_decision(text), narrowed=narrowed, cost=cost
                )
            case Failed(reason, _, _, retry_after, waiting) if waiting:
                return Snooze(retry_after or LATER, reason, cost)
            case Failed(reason, _, _, retry_after):
                return Retry(reason, retry_after, cost=cost)
            case Stopped(code):
                return await self._drop(claim, code, cost)
            case _:
                return await self._drop(claim, "it asked a person", cost)

    async def _still_due(self, claim: Claim, spec: AgentSpec) -> tuple[float, list[Explained]]:
        """The time, and the findings that are still true; the others are put on record as over."""
        items = (await asyncio.to_thread(self.agents.heartbeat_list, spec)).items
        return await self.database.write(
            partial(_still_due, vault=self.vault, claim=claim, items=items, timezone=self.settings.timezone)
        )

    async def _later(self, claim: Claim, at: float, after: float, reason: str) -> Outcome:
        found = await self.database.read(partial(findings_of, job_id=claim.id))
        if at - min((each.found_at for each in found), default=at) > STALE:
            return await self._drop(claim, "stale")
        return Snooze(max(after, LATER), reason)

    async def _drop(self, claim: Claim, reason: str, cost: float = 0) -> Outcome:
        await self.database.write(partial(_settle_all, claim=claim, state=DROPPED, reason=reason))
        return Done(cost=cost, reason=reason if reason.startswith(("budget.", "limit.", "price.")) else "")

    async def _think(self, run: Run, spec: AgentSpec, explained: Sequence[Explained]) -> End:
        claim = run.claim
        spec, identity = await RunIdentity(self.database, self.vault, self.agents).fixed(claim, spec)
        catalogue = await self.keys.catalogue(claim.workspace_id)
        model = await catalogue.ready(spec.model, fallback=spec.fallback, caller=str(claim.conversation_id))
        if isinstance(model, Offline):
            raise ConfigError("There is no model that could decide anything: the offline model cannot.")
        own = spec.model_copy(update={"limits": own_limits(spec), "tools": (), "mcp": {}})
        prices = load_prices(self.settings.data_dir / "prices.toml", catalogue.prices())
        research = self.settings.workers_v1 and spec.heartbeat.research
        ports = self._ports(run, spec, identity, briefing(explained, research=research))
        loop = await build(own, model, (), prices, ports, may_use=lambda tool: tool.tier is Tier.READ)
        return await loop.run()

    def _ports(self, run: Run, spec: AgentSpec, identity: tuple[str, str], text: str) -> Ports:
        claim, database, vault = run.claim, self.database, self.vault
        memory = self.settings.memory_v1
        return Ports(
            journal=StoreJournal(database, vault, claim, memory=False, redact=self.redactor.redact),
            inbox=BriefInbox(text, run),
            history=NoHistory(),
            memories=StoreMemories(database, vault, claim, self.recall, remind=False) if memory else None,
            questions=StoreQuestions(database, vault, claim),
            ledger=HeartbeatLedger(
                database=database, claim=claim, timezone=self.settings.timezone, spec=spec
            ),
            blobs=StoreBlobs(database, vault, str(claim.conversation_id)),
            covers=Covers(read_seq=0, identity=identity[0], digest=identity[1]),
            mask=self.redactor,
        )

    async def _act(
        self,
        claim: Claim,
        spec: AgentSpec,
        explained: Sequence[Explained],
        wish: Decision,
        *,
        narrowed: bool,
        cost: float,
    ) -> Outcome:
        if isinstance(wish, SilenceDecision):
            return await self._stay_quiet(claim, cost)
        chosen = [each for each in explained if each.number in wish.findings] or list(explained)
        if isinstance(wish, ResearchDecision):
            done = await self.database.read(partial(_researched, vault=self.vault, claim=claim))
            if done is None or done.finished_at is None:
                return await self._research(claim, spec, wish, narrowed=narrowed, cost=cost)
            if done.state != "done":
                return await self._stay_quiet(claim, cost, "nothing came of its research")
            untrusted = bool((done.result or {}).get("narrowed"))
            nudge = self._report(spec, chosen, wish, done, narrowed=narrowed or untrusted)
        else:
            nudge = self._nudge(spec, chosen, wish, narrowed)
        held = await self.database.write(
            partial(_nudge, vault=self.vault, claim=claim, nudge=nudge, chosen=chosen)
        )
        crash_point("heartbeat.nudged")
        if held == "muted":
            return await self._drop(claim, held, cost)
        if held:
            at = await self.database.read(clock)
            later = await self._later(claim, at, LATER, "heartbeat.held_back")
            return later if isinstance(later, Snooze) else Done(cost=cost)
        return Done(cost=cost)

    async def _stay_quiet(self, claim: Claim, cost: float, reason: str = "") -> Outcome:
        await self.database.write(partial(_settle_all, claim=claim, state=QUIET, reason=reason))
        return Done(cost=cost)

    async def _research(
        self, claim: Claim, spec: AgentSpec, wish: ResearchDecision, *, narrowed: bool, cost: float
    ) -> Outcome:
        """Have a worker run look into something, within the heartbeat's budget, and wait for it without a slot."""
        if narrowed or not self.settings.workers_v1 or not spec.heartbeat.research:
            return await self._stay_quiet(claim, cost, "research is closed")
        task = NewTask(RESEARCH, self._clean(wish.title), self._clean(wish.instructions))
        jobs = await self.database.write(
            partial(
                _begin_research,
                vault=self.vault,
                claim=claim,
                task=task,
                budget=micros(spec.heartbeat.budget),
                timezone=self.settings.timezone,
            )
        )
        crash_point("heartbeat.delegated")
        if not jobs:
            return await self._stay_quiet(claim, cost, "no research is left for today")
        return WaitForJobs(children=tuple(jobs), cost=cost)

    def _report(
        self,
        spec: AgentSpec,
        chosen: Sequence[Explained],
        wish: ResearchDecision,
        done: TaskRecord,
        *,
        narrowed: bool,
    ) -> Nudge:
        """What a worker run found, told as a nudge. What strangers may speak through does nothing where it is read."""
        found = self._clean(str((done.result or {}).get("summary", "")))[:MAX_TEXT]
        text = f"I looked into it by myself: {self._clean(wish.title)}.\n\n{found}"
        rationale = f"it was looked into because: {self._clean(wish.rationale)}"
        why = (*dict.fromkeys(each.why for each in chosen), rationale)
        return Nudge(agent=spec.name, text=defuse(text) if narrowed else text, why=why, narrowed=narrowed)

    def _nudge(
        self, spec: AgentSpec, chosen: Sequence[Explained], wish: NudgeDecision, narrowed: bool
    ) -> Nudge:
        """What to write. A run that has read strangers' text offers nothing to press: a press gives its words the
        trust of whoever pressed."""
        safe = defuse if narrowed else str
        offered = [
            NudgeAction(self._clean(each.label), self._clean(each.say), each.goal)
            for each in (() if narrowed else wish.actions)
        ]
        # A button that says the same as another, or as the one that mutes, would do something else than it says.
        known: dict[str, NudgeAction | None] = {MUTE.casefold(): None}
        actions = tuple(each for each in offered if known.setdefault(each.label.casefold(), each) is each)
        return Nudge(
            agent=spec.name,
            text=safe(self._clean(wish.text)),
            why=tuple(dict.fromkeys(each.why for each in chosen)),
            actions=actions,
            narrowed=narrowed,
        )

    def _clean(self, text: str) -> str:
        return self.redactor.redact(clean(text))


def _begin_research(
    connection: Connection, vault: Vault, claim: Claim, task: NewTask, budget: int, timezone: str
) -> list[NewJob]:
    """The job of a heartbeat's task, made once; none when the day's bounds do not allow it."""
    lock_conversation(connection, str(claim.conversation_id))
    # The agent's lock as well, so that two of its heartbeats never take the last one.
    connection.execute(select(agents.c.id).where(agents.c.id == claim.agent_id).with_for_update())
    agent_id = str(claim.agent_id)
    if _researched(connection, vault, claim) is None:
        count, _ = research_today(connection, agent_id, clock(connection))
        spent = spent_today(connection, agent_id, timezone)
        if count >= MAX_RESEARCH or spent + RESEARCH_MICROS > budget:
            return []
    wanted = Delegated(
        RESEARCH_CALL, (task,), 0, trust="member", narrowed=False, background=True, budget=RESEARCH_MICROS
    )
    return delegate_tasks(connection, vault, claim, wanted, None)


def _researched(connection: Connection, vault: Vault, claim: Claim) -> TaskRecord | None:
    """The task that a heartbeat's run has begun, if it has."""
    begun = (tasks.c.parent_job_id == claim.id) & (tasks.c.call_id == RESEARCH_CALL)
    task_id = connection.execute(select(tasks.c.id).where(begun)).scalar()
    return None if task_id is None else load_task(connection, vault, task_id)


def _still_due(
    connection: Connection, vault: Vault, claim: Claim, items: Any, timezone: str
) -> tuple[float, list[Explained]]:
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)
    at = clock(connection)
    found = findings_of(connection, claim.id)
    explained = explain(connection, vault, found, items, timezone)
    there = {each.id for each in explained}
    settle(connection, [each.id for each in found if each.id not in there], DROPPED, at, "over")
    return at, explained


def _settle_all(connection: Connection, claim: Claim, state: str, reason: str = "") -> None:
    hold(connection, claim)
    found = findings_of(connection, claim.id)
    settle(connection, [each.id for each in found], state, clock(connection), reason)


def _nudge(
    connection: Connection, vault: Vault, claim: Claim, nudge: Nudge, chosen: Sequence[Explained]
) -> str:
    """Make the nudge, unless something holds it back; says what. Bounds are counted and used up in one transaction."""
    conversation_id = str(claim.conversation_id)
    lock_conversation(connection, conversation_id)
    hold(connection, claim)
    at = clock(connection)
    if held := holds_back(connection, str(claim.agent_id), conversation_id, at):
        return held
    submit_nudge(connection, vault, claim, nudge, chosen, at)
    rest = [each.id for each in findings_of(connection, claim.id)]
    settle(connection, rest, QUIET, at)
    return ""
