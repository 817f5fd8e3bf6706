"""The answer job: gives the loop its adapters, runs it, and turns its end into the job's outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, bindparam, select

from gofer.agent.conversation import Covers, Delegations
from gofer.agent.limits import LimitSettings
from gofer.agent.model import Model
from gofer.agent.outcome import Answered, Asked, Delegated, Failed, Stopped
from gofer.agent.outcome import Outcome as End
from gofer.agent.prices import MICROS, Prices, load_prices
from gofer.agent.tools.builtin import builtin_tools
from gofer.agent.tools.registry import plugin_tools
from gofer.agent.turn import SERVICE_WAIT
from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.crash import crash_point
from gofer.errors import ConfigError, NotFound, Temporary
from gofer.identity import linked_identities
from gofer.intake.admit import Admitter, covered, unread
from gofer.integration import JobScope
from gofer.jobs.outcome import (
    OUTAGE,
    PAUSE_SECONDS,
    PAUSED,
    Cancel,
    Dead,
    Done,
    Draft,
    NewJob,
    Outcome,
    Retry,
    Snooze,
    Wait,
    WaitForJobs,
)
from gofer.jobs.queue import Claim
from gofer.jobs.wait_reasons import NOTICED, clock_time, waited
from gofer.jobs.worker import Run
from gofer.mcp.settings import ServersForRun
from gofer.memory.recall import Recall
from gofer.runs.agent_files import AgentFiles, AgentSpec, in_force
from gofer.runs.build import Ports, build
from gofer.runs.memories import StoreMemories
from gofer.runs.memory_manager import FULL, ensure_summing_up
from gofer.runs.model_keys import ModelKeys
from gofer.runs.proposals import RunIdentity
from gofer.runs.shell_access import Loans, ShellAccessGrants
from gofer.runs.shells import ShellKind, Shells
from gofer.runs.spend import SPANNING, StoreLedger, cost_of_job, nearly_used, ran_out_before
from gofer.runs.store_adapters import (
    FilesIn,
    StoreBlobs,
    StoreHistory,
    StoreInbox,
    StoreJournal,
    StoreQuestions,
)
from gofer.sanitize import defuse
from gofer.secrets.last_used import Uses
from gofer.settings import Settings
from gofer.store import row_macs, tables
from gofer.store.bootstrap import FIRST_AGENT
from gofer.store.database import Database
from gofer.store.messages import StoredMessage, binding_of
from gofer.store.tables import SCHEDULE, Trust, messages
from gofer.tool import Shell, Tool
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()
CANCELLED = "cancelled"
TRIGGER = "trigger"
"""The part of a job's payload that says who asked that an external agent be woken."""
APOLOGIES = {
    CANCELLED: "Stopped, as asked.",
    "worker.lost": "I had to give this up: the process working on it stopped each time. Send it again to retry.",
    OUTAGE: "I had to give this up: the database failed me again and again. Send it again to retry.",
    "internal": "Something went wrong on my side and trying again did not help. The operator can see the details.",
}
GIVEN_UP = "I had to give this up ({reason})."
NOT_SET_UP = (
    "I cannot work on this: I am not set up right. Please ask whoever runs Gofer to run `gofer doctor`."
)
DELAYED = "{who} makes us wait until {until}. Your message is kept, and I go on by myself."
PROVIDER, SERVICE = "The model's provider", "A service that I use"
NEARLY_USED = {
    "day": "My budget for today is nearly used up: ${spent:.2f} of ${cap:.2f}.",
    "background": "My budget for today for work that nobody waits for is nearly used up: ${spent:.2f} of ${cap:.2f}.",
    "conversation": "The budget for this conversation is nearly used up: ${spent:.2f} of ${cap:.2f}.",
}
WAIT_FOR_PROVIDER = 30.0
_AGENT = select(
    *tables.agents.c,
    select(tables.conversations.c.model)
    .where(tables.conversations.c.id == bindparam("conversation"))
    .scalar_subquery()
    .label("chosen"),
).where(tables.agents.c.id == bindparam("agent"))


def _name_and_model(connection: Connection, asked: dict[str, Any]) -> tuple[str, str]:
    """An agent's name and the model chosen for a conversation; raises ConfigError for a row that is refused."""
    row = connection.execute(_AGENT, asked).first()
    if row is None:
        return "None", ""
    try:
        row_macs.require(connection, tables.agents, row)
    except row_macs.RowRefused as error:
        raise ConfigError(str(error)) from error
    return str(row.name), row.chosen or ""


SelfUpdateTools = Callable[[Claim, AgentSpec, StoredMessage], list[Tool[Any]]]
"""The tools with which an agent that may do so changes Gofer itself, for whoever asked."""


ToolsOfRun = Callable[[Claim, StoredMessage], Awaitable[list[Tool[Any]]]]
"""Further tools of a run that a message asked for."""


class Delegator(Protocol):
    """Makes the tasks that runs delegate."""

    def of_run(self, claim: Claim) -> Delegations:
        """What one run may delegate, and what came of it."""
        ...

    async def make(self, claim: Claim, wanted: Delegated, message_seq: int) -> Sequence[NewJob]:
        """Make the tasks of a call, each once; returns the jobs that do them."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """How a task is worked on: by the same agent, with less."""

    asker: StoredMessage | None
    """The message that asked for it."""
    as_worker: Callable[[AgentSpec], AgentSpec]
    """The agent with the model of its kind."""
    limited: Callable[[AgentSpec], AgentSpec]
    """The agent with the limits and the words for a worker."""
    ports: Callable[[Ports], Ports]
    may_use: Callable[[Tool[Any]], bool]
    own: tuple[Tool[Any], ...]
    files: ShellKind
    trust: Trust
    goal_id: str | None = None


class Drafting(Protocol):
    """Makes one sentence into a reply to whoever asked."""

    def __call__(self, text: str, kind: Any = "error") -> Awaitable[tuple[Draft, ...]]: ...


class ExternalAgents(Protocol):
    """Wakes agents that somebody else runs."""

    async def handle(
        self, run: Run, spec: AgentSpec, admitted: Sequence[StoredMessage], draft: Drafting
    ) -> Outcome:
        """Move the Trigger of an external agent on."""
        ...


class RunObserver:
    """Is told what a run does as it goes. Contract: neither blocks nor raises."""

    def heard(self, claim: Claim, kind: str, data: dict[str, Any]) -> None:
        """Called when the run says or does something."""

    def ended(self, claim: Claim, outcome: Outcome | None) -> None:
        """The run has ended, however it did; None when it raised."""


@dataclass(eq=False, kw_only=True)
class Answerer:
    """Answers conversations. `handle` is the handler of answer jobs."""

    settings: Settings
    database: Database
    vault: Vault
    accounts: LoadedConnections
    admitter: Admitter
    redactor: Redactor
    shells: Shells
    loans: Loans
    keys: ModelKeys
    uses: Uses
    agents: AgentFiles
    servers: ServersForRun
    observer: RunObserver = field(default_factory=RunObserver)
    recall: Recall | None = None
    self_update: SelfUpdateTools | None = None
    goal_tools: ToolsOfRun | None = None
    delegator: Delegator | None = None
    external: ExternalAgents | None = None

    def __post_init__(self) -> None:
        self._identity = RunIdentity(self.database, self.vault, self.agents)
        self._recall = self.recall or Recall(self.database, self.vault)
        self._plugins = plugin_tools()  # looked for once: reading every package's entry points takes long

    async def handle(self, run: Run) -> Outcome:
        """Run the loop once, from the journal if an earlier worker began it."""
        outcome: Outcome | None = None
        try:
            outcome = await self._answer(run)
            return outcome
        except asyncio.CancelledError:
            if run.cancelled.is_set():  # somebody stopped it, and it did not end by itself in time
                outcome = Cancel("cancelled")
            raise
        finally:
            self.observer.ended(run.claim, outcome)

    async def _answer(self, run: Run) -> Outcome:
        claim = run.claim
        asker: StoredMessage | None = None
        crash_point("run.started")
        try:
            admitted = await self._admitted(claim)
            crash_point("run.admitted")
            asker = _asker(admitted)
            if asker is None and TRIGGER not in claim.payload:
                # No message from somebody known wants an answer: no run at all.
                return Done(included_to=admitted[-1].seq if admitted else claim.covers_to)
            spec = await self._spec(claim)
            if spec.runtime is not None and self.external is not None:
                return await self.external.handle(run, spec, admitted, partial(self._drafts, claim, asker))
            if asker is None:
                return Done(included_to=admitted[-1].seq if admitted else claim.covers_to)
            return await self._run(run, asker, spec)
        except Temporary as error:
            if error.retry_after is not None:
                return Snooze(error.retry_after, error.reason)
            return Retry(
                error.reason, drafts=await self._drafts(claim, asker, GIVEN_UP.format(reason=error.reason))
            )
        except ConfigError as error:
            # The text may name files and settings of this machine: not for everybody in the conversation.
            log.error("run.not_set_up", job=claim.id, error=str(error))
            return Dead("config", await self._drafts(claim, asker, NOT_SET_UP), detail=str(error))
        except NotFound:
            return Dead("purged")

    async def _admitted(self, claim: Claim, to: int | None = None) -> list[StoredMessage]:
        """The messages that the job covers, up to a number or to the last, admitted."""
        found = await self.database.read(unread, vault=self.vault, claim=claim, after=claim.covers_from)
        return await self.admitter.admit(claim, [read for read in found if to is None or read.seq <= to])

    async def _run(self, run: Run, asker: StoredMessage, spec: AgentSpec) -> Outcome:
        claim = run.claim
        spec, identity = await self._identity.fixed(claim, spec)
        spec = await self._in_place(spec, asker)
        model, prices = await self._model(claim, spec)
        async with self.loans.job() as job:
            tools, grants = await self._tools(asker, job), await self._shell_grants(asker, job)
            tools += await self._identity.tools(claim, spec)
            tools += await self.goal_tools(claim, asker) if self.goal_tools is not None else []
            if self.self_update is not None and spec.self_update:
                tools += self.self_update(claim, spec, asker)
            async with self.shells.lend(claim, asker.trust, grants, run.cancelled) as shell:
                ports = self._ports(run, shell, identity)
                async with self.servers(spec.mcp) as servers:
                    loop = await build(spec, model, tools, prices, ports, servers)
                    end = await loop.run()
        crash_point("run.answered")
        if isinstance(ports.memories, StoreMemories) and isinstance(end, Answered):
            ports.memories.answered(end.text)
        if self.settings.memory_v1 and claim.participant_id and await loop.fullness() > FULL:
            await self.database.write(ensure_summing_up, participant=claim.participant_id)
        # Others may have joined in meanwhile: the reply goes to the last person the run has heard.
        last = _asker(await self._admitted(claim, end.included_to))
        return await self._outcome(claim, last or asker, end, spec.limits)

    async def _model(self, claim: Claim, spec: AgentSpec) -> tuple[Model, Prices]:
        catalogue = await self.keys.catalogue(claim.workspace_id)
        model = await catalogue.ready(
            spec.model, fallback=spec.fallback, effort=spec.effort, caller=str(claim.conversation_id)
        )
        if key_name := catalogue.key_name(spec.model):
            self.uses.add(claim.workspace_id, "", key_name)
        return model, load_prices(self.settings.data_dir / "prices.toml", catalogue.prices())

    async def work(self, run: Run, wanted: WorkerRun) -> End:
        """Run the loop of a task: the same agent, with the tools, the shell and the ports of its kind."""
        claim = run.claim
        spec = await self._spec(claim)
        if spec.runtime is not None:
            raise ConfigError(f"{spec.name} runs elsewhere and has no workers. Ask an agent of Gofer's own.")
        spec, identity = await self._identity.fixed(claim, wanted.as_worker(spec))
        if wanted.asker is not None:
            spec = await self._in_place(spec, wanted.asker)
        spec = wanted.limited(spec)
        model, prices = await self._model(claim, spec)
        async with self.loans.job() as job:
            tools: list[Tool[Any]] = [*builtin_tools(), *self._plugins]
            grants = None
            if wanted.asker is not None:
                tools = await self._tools(wanted.asker, job)
                grants = await self._shell_grants(wanted.asker, job) if wanted.files == "share" else None
            async with self.lend_worker(run, wanted.files, wanted.trust, grants) as shell:
                ports = wanted.ports(self._ports(run, shell, identity, wanted.goal_id))
                async with self.servers(spec.mcp) as servers:
                    loop = await build(
                        spec, model, tools, prices, ports, servers, may_use=wanted.may_use, own=wanted.own
                    )
                    return await loop.run()

    @contextlib.asynccontextmanager
    async def lend_worker(
        self, run: Run, kind: ShellKind, trust: Trust, grants: ShellAccessGrants | None = None
    ) -> AsyncIterator[Shell | None]:
        """The shell of a worker run: none, or its own over the conversation's files."""
        if kind == "none":
            yield None
            return
        async with self.shells.lend_worker(
            run.claim, trust, read_only=kind == "read", equipping=grants
        ) as shell:
            yield shell

    def memories_of(self, claim: Claim) -> StoreMemories:
        """What a run may remember, and is not reminded of."""
        return StoreMemories(self.database, self.vault, claim, self._recall, remind=False)

    async def _spec(self, claim: Claim) -> AgentSpec:
        """The agent as its file says now, with the model chosen for this conversation. The first agent needs no file.
        Raises ConfigError for another one whose file is gone."""
        name, model = await self.database.read(_name_and_model, asked=_asked_name(claim))
        try:
            spec = self.agents.get(name)
        except NotFound as error:
            if name != FIRST_AGENT:  # its file may have allowed it less than the built-in agent has
                raise ConfigError(str(error)) from error
            spec = AgentSpec(name=name)
        return spec.model_copy(update={"model": model}) if model else spec

    async def _in_place(self, spec: AgentSpec, asker: StoredMessage) -> AgentSpec:
        """The agent with the operator's instructions for this place, and with the limits of this kind of request."""
        if asker.connection_id is None:
            return spec
        connected = await self.accounts.get(asker.connection_id)
        most = connected.integration.limits(connected.account, asker.message)
        wanted = connected.integration.instructions(connected.account, asker.message)
        changes: dict[str, Any] = {"limits": spec.limits.narrowed(most)} if most else {}
        if wanted:
            changes["instructions"] = "\n\n".join(
                part for part in (spec.instructions.strip(), wanted) if part
            )
        return spec.model_copy(update=changes)

    async def _tools(self, asker: StoredMessage, job: JobScope) -> list[Tool[Any]]:
        tools = [*builtin_tools(), *self._plugins]
        if asker.connection_id is not None:
            connected = await self.accounts.get(asker.connection_id)
            tools += connected.integration.tools(replace(connected.account, job=job), asker.message)
            tools += await self._delegated_tools(asker, connected, job)
        return tools

    async def _delegated_tools(
        self, asker: StoredMessage, here: LoadedConnection, job: JobScope
    ) -> list[Tool[Any]]:
        """Tools for other services, for an owner who is known there."""
        if asker.trust is not Trust.OWNER:
            return []
        known = await self.database.read(
            linked_identities,
            workspace_id=here.workspace_id,
            integration=here.integration.name,
            subject=asker.message.author.id,
        )
        tools: list[Tool[Any]] = []
        for connected in await self.accounts.all() if known else ():
            # With two connections of one sort, the first one: a tool has one name.
            subject = known.pop(connected.integration.name, None) if connected.enabled else None
            if subject is not None:
                tools += connected.integration.delegated_tools(replace(connected.account, job=job), subject)
        return tools

    async def _shell_grants(self, asker: StoredMessage, job: JobScope) -> ShellAccessGrants | None:
        if asker.connection_id is None:
            return None
        connected = await self.accounts.get(asker.connection_id)
        account = replace(connected.account, job=job)
        return ShellAccessGrants(
            lambda: connected.integration.shell_access(asker.message, account), account.id
        )

    def _memories(self, claim: Claim) -> StoreMemories:
        remind = self.settings.automatic_recall
        return StoreMemories(self.database, self.vault, claim, self._recall, remind=remind)

    def _ports(
        self, run: Run, shell: Shell | None, identity: tuple[str, str], goal_id: str | None = None
    ) -> Ports:
        claim = run.claim
        database, vault = self.database, self.vault
        memory = self.settings.memory_v1
        memories = self._memories(claim)
        files = FilesIn(database, vault, claim, shell.write if shell is not None else None)
        return Ports(
            journal=StoreJournal(database, vault, claim, memory=memory, redact=self.redactor.redact, run=run),
            inbox=StoreInbox(database, vault, admitter=self.admitter, run=run, files=files),
            history=StoreHistory(database, vault, claim, memory=memory, tell_damaged=memories.tell_damaged),
            memories=memories if memory else None,
            questions=StoreQuestions(database, vault, claim),
            ledger=StoreLedger(
                database=database, claim=claim, timezone=self.settings.timezone, goal_id=goal_id
            ),
            delegations=None if self.delegator is None else self.delegator.of_run(claim),
            blobs=StoreBlobs(database, vault, str(claim.conversation_id)),
            covers=Covers(read_seq=claim.covers_from, identity=identity[0], digest=identity[1]),
            shell=shell,
            mask=self.redactor,
            listen=partial(self.observer.heard, claim),
        )

    async def _delegated(self, claim: Claim, asker: StoredMessage, end: Delegated, cost: float) -> Outcome:
        """Make the rows of delegated tasks; their jobs are made with the commit that ends this run."""
        assert self.delegator is not None
        made = await self.delegator.make(claim, end, asker.seq)
        crash_point("run.delegated")
        return WaitForJobs(tuple(made), cost=cost)

    async def _outcome(self, claim: Claim, asker: StoredMessage, end: End, limits: LimitSettings) -> Outcome:
        cost = await self.database.read(cost_of_job, job_id=claim.id)
        end = await asyncio.to_thread(_defused, end, asker)
        match end:
            case Answered(text, included_to, warning, narrowed):
                warnings = [warning, await self._nearly_used(claim, asker, limits) if cost else ""]
                whole = "\n\n".join([text, *(f"Note: {one}" for one in warnings if one)])
                drafts = await self._drafts(claim, asker, whole, "final", said=text, narrowed=narrowed)
                return Done(drafts, included_to, cost)
            case Asked(call_id, question, _, seen_to, narrowed):
                choices = "".join(f"\n- {choice}" for choice in question.choices)
                drafts = await self._drafts(claim, asker, question.text + choices, "note", narrowed=narrowed)
                # Neither a schedule nor a program can be asked: whoever is known there may answer.
                nobody = asker.message.event == SCHEDULE or asker.message.author.is_bot
                asked_of = "" if nobody else asker.message.author.id
                return Wait(
                    question.text,
                    call_id,
                    asked_of,
                    question.expires_after,
                    drafts,
                    cost,
                    question.choices,
                    seen_to,
                )
            case Delegated():
                return await self._delegated(claim, asker, end, cost)
            case Stopped():
                return await self._stopped(claim, asker, end, cost)
            case Failed("paused"):
                return Snooze(PAUSE_SECONDS, PAUSED, cost)
            case Failed("model.auth", sentence, included_to):
                # Waiting does not fix a refused key, and whoever asked should not wait in silence.
                log.error("model.refused", reason="the provider refuses the key", fix="gofer secrets put")
                return Dead("model.auth", await self._drafts(claim, asker, sentence), included_to, cost)
            case Failed(reason, _, _, retry_after, waiting) if waiting:
                after = retry_after or WAIT_FOR_PROVIDER
                return Snooze(after, reason, cost, await self._delayed(claim, asker, after, reason))
            case Failed(reason, sentence, included_to, retry_after):
                return Retry(
                    reason, retry_after, await self._drafts(claim, asker, sentence), included_to, cost
                )

    async def _stopped(self, claim: Claim, asker: StoredMessage, end: Stopped, cost: float) -> Outcome:
        # A run that is stopped before its first turn has read nothing; its messages are still dealt with.
        dealt_with = max(end.included_to, asker.seq)
        if end.code == "user.stop":
            drafts = await self._drafts(
                claim, asker, end.text, stopped_by=CANCELLED, said=_model_words(end), narrowed=end.narrowed
            )
            return Cancel(CANCELLED, drafts, dealt_with, cost)
        if end.code in SPANNING and end.text == end.sentence:
            return Done(await self._ran_out(claim, asker, end.text, end.code), dealt_with, cost, end.code)
        drafts = await self._drafts(
            claim, asker, end.text, "final", end.code, _model_words(end), end.narrowed
        )
        return Done(drafts, dealt_with, cost, end.code)

    async def _nearly_used(self, claim: Claim, asker: StoredMessage, limits: LimitSettings) -> str:
        """A warning that a budget for several jobs is nearly used up, for the person whose job brought it there."""
        caps = limits.caps(background=asker.message.event == SCHEDULE)
        zone = self.settings.timezone
        found = await self.database.read(
            nearly_used, claim=claim, caps=caps, warn_at=limits.warn_at, timezone=zone
        )
        if found is None:
            return ""
        scope, spent, cap = found
        return NEARLY_USED[scope].format(spent=spent / MICROS, cap=cap / MICROS)

    async def _delayed(
        self, claim: Claim, asker: StoredMessage, after: float, reason: str
    ) -> tuple[Draft, ...]:
        """A note that it takes longer, for people who wait long enough to wonder. Nobody waits for a schedule."""
        so_far = await self.database.read(waited, job_id=claim.id)
        if so_far + after < NOTICED or asker.message.event == SCHEDULE:
            return ()
        until = clock_time(time.time() + after, self.settings.timezone, today=time.time())
        who = SERVICE if reason == SERVICE_WAIT else PROVIDER
        return await self._drafts(claim, asker, DELAYED.format(who=who, until=until), "note")

    async def _ran_out(self, claim: Claim, asker: StoredMessage, text: str, code: str) -> tuple[Draft, ...]:
        """The reply when a budget is used up. People are told each time; for schedules once is enough until there is
        money again."""
        zone = self.settings.timezone
        if asker.message.event == SCHEDULE and await self.database.read(
            ran_out_before, claim=claim, code=code, timezone=zone
        ):
            return ()
        return await self._drafts(claim, asker, text, "final", code, said="")

    async def _drafts(
        self,
        claim: Claim,
        asker: StoredMessage | None,
        text: str,
        kind: Any = "error",
        stopped_by: str = "",
        said: str | None = None,
        narrowed: bool = False,
    ) -> tuple[Draft, ...]:
        """A reply to whoever asked, in parts that their service can take.

        `said` is the model's own part of the text, when that is not all of it: our sentences are not stored as the
        model's words.
        """
        said = None if said == text else said
        connection_id = asker.connection_id if asker is not None else claim.connection_id
        binding = await self.database.read(
            binding_of, conversation_id=claim.conversation_id, connection_id=connection_id
        )
        if binding is None or connection_id is None:
            return ()
        connected = await self.accounts.get(connection_id)
        signature = await self._signature(claim)
        parts = tuple(await asyncio.to_thread(connected.integration.split, signature + text))
        if asker is None:
            return (Draft(binding, parts, kind, stopped_by=stopped_by, signature=signature, said=said),)
        about = asker.message
        return (
            Draft(
                binding, parts, kind, about.external_id, about.facts, stopped_by, signature, said, narrowed
            ),
        )

    async def _signature(self, claim: Claim) -> str:
        """A first line that names the agent, where there is more than one."""
        if len(in_force(await asyncio.to_thread(self.agents.look))) < 2:
            return ""
        row = await self.database.read(
            lambda connection: connection.execute(_AGENT, _asked_name(claim)).first()
        )
        return f"**{row.name}**\n\n" if row is not None else ""


def _model_words(end: Stopped) -> str:
    """The model's own words before its run was ended. The sentence that says why is ours."""
    return end.text.removesuffix(end.sentence).rstrip()


def _asked_name(claim: Claim) -> dict[str, Any]:
    return {"agent": claim.agent_id, "conversation": claim.conversation_id}


def _asker(admitted: Sequence[StoredMessage]) -> StoredMessage | None:
    """The last message from somebody known that wants an answer."""
    known = (Trust.OWNER, Trust.MEMBER)
    return next((read for read in reversed(admitted) if read.message.addressed and read.trust in known), None)


def _defused(end: End, asker: StoredMessage) -> End:
    """The end of a run that has read strangers' text, defused: people read the same words, and none of them acts as a
    link or a mention."""
    if isinstance(end, Failed | Delegated) or not end.narrowed:
        return end
    if isinstance(end, Stopped) and end.text == end.sentence:
        return end  # words of ours alone
    message = asker.message
    safe = partial(defuse, here=message.conversation, people=(message.author.name,))
    if isinstance(end, Asked):
        question = replace(
            end.question, text=safe(end.question.text), choices=tuple(map(safe, end.question.choices))
        )
        return replace(end, question=question)
    return replace(end, text=safe(end.text))


def apology(connection: Connection, claim: Claim, reason: str) -> tuple[Draft, ...]:
    """The honest sentence for a job that ends without an answer; none when only strangers wait for one.

    Authors who could not be looked up are told too, because the look-up may be what failed. Only people who may stop a
    job are told that it was stopped.
    """
    if claim.participant_id is None or claim.conversation_id is None:
        return ()
    known = (Trust.OWNER, Trust.MEMBER)
    query = select(messages.c.external_id, messages.c.connection_id).where(
        messages.c.conversation_id == claim.conversation_id,
        messages.c.seq > claim.covers_from,
        messages.c.addressed,
        covered(claim.id),
        messages.c.trust.in_(known if reason == CANCELLED else (*known, Trust.UNKNOWN)),
    )
    asked = connection.execute(query.order_by(messages.c.seq.desc()).limit(1)).first()
    if asked is None:
        return ()
    binding = binding_of(connection, claim.conversation_id, asked.connection_id)
    if binding is None:
        return ()
    saying = APOLOGIES.get(reason, GIVEN_UP.format(reason=reason))
    return (Draft(binding, (saying,), kind="error", reply_to=asked.external_id, stopped_by=reason),)
