"""Builds the Loop of one job from the agent's file and the platform's adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gofer.agent.context import ConversationProvider, PlainAssembler, WholeContext
from gofer.agent.context.compressor import ModelSummariser, PlainCompressor
from gofer.agent.conversation import (
    ConversationMessage,
    Covers,
    Delegations,
    History,
    Inbox,
    Memories,
    Questions,
    Summary,
    Trust,
    rank,
)
from gofer.agent.journal import Journal
from gofer.agent.limits import MIN_TOKENS, JobLimits, Ledger
from gofer.agent.loop import Loop
from gofer.agent.model import Model
from gofer.agent.models.offline import Offline
from gofer.agent.prices import Prices
from gofer.agent.state import Listener
from gofer.agent.tools.bash import MAX_CHARACTERS, Masker, NoMask
from gofer.agent.tools.builtin import (
    EARLIER_ANSWER,
    REMEMBER,
    delegate_tool,
    earlier_answer_tool,
    recall_tool,
    remember_tool,
)
from gofer.agent.tools.registry import RECALL, Policy, ToolRegistry, ToolRunner
from gofer.mcp.settings import RunServers
from gofer.runs.agent_files import AgentSpec
from gofer.tool import Blobs, Shell, Tool

NO_SERVERS = RunServers()
MIN_CHARACTERS = 2000
"""Characters of a tool's output that are always kept, however small the model's window is."""
RECALL_MARGIN = 1000


@dataclass(frozen=True, slots=True)
class Ports:
    """The adapters of one run."""

    journal: Journal
    inbox: Inbox
    history: History
    questions: Questions
    ledger: Ledger
    blobs: Blobs
    covers: Covers
    shell: Shell | None = None
    """None where no sandbox can be had; the shell's tools then say so."""
    memories: Memories | None = None
    """None where memory is off: cleared results are then gone."""
    delegations: Delegations | None = None
    """None where the run may not delegate."""
    mask: Masker = field(default_factory=NoMask)
    """Hides secrets in what tools give, before journal and model see it, and in what listeners hear live."""
    listen: Listener = field(default=lambda kind, data: None)


class NoHistory:
    """The `History` of a run that is told what it needs, and nothing of what was said before."""

    async def summary(self) -> Summary | None:
        return None

    async def between(self, after: int, to: int, *, newest: int) -> Sequence[ConversationMessage]:
        return []

    async def answer(self, number: int) -> str | None:
        return None


async def waking_trust(ports: Ports) -> Trust:
    """The trust of the run: from its journal if it began before, else that of whoever woke it."""
    for event in await ports.journal.load():
        if event.kind == "run.started":
            trust: Trust = event.data["trust"]
            return trust
    unread = await ports.inbox.unread(ports.covers.read_seq)
    waking = [said for said in unread if said.addressed] or unread
    return max((said.trust for said in waking), key=rank, default="unknown")


async def build(
    spec: AgentSpec,
    model: Model,
    tools: Iterable[Tool[Any]],
    prices: Prices,
    ports: Ports,
    servers: RunServers = NO_SERVERS,
    *,
    may_use: Callable[[Tool[Any]], bool] = lambda tool: True,
    own: Sequence[Tool[Any]] = (),
) -> Loop:
    """The loop of one job. `may_use` says which tools a run of its kind has at all; it has its `own` in any case."""
    names = tuple({model.name, *getattr(model, "names", ())})
    window = model.context_window
    longest = min(spec.limits.output_tokens, model.features.output_tokens or window, window // 4)
    settings = spec.limits.model_copy(update={"output_tokens": max(MIN_TOKENS, longest)})
    trust = await waking_trust(ports)
    mcp = [tool.name for tool in servers.tools]
    always = (EARLIER_ANSWER, RECALL, REMEMBER, *(tool.name for tool in own))
    policy = Policy({*spec.tools, *always, *mcp}, trust)
    longest_output = max(MIN_CHARACTERS, min(MAX_CHARACTERS, window // 2))
    of_the_run = [earlier_answer_tool(ports.history.answer)]
    if ports.memories is not None:
        # A little more than a result has, so that any result comes back whole.
        of_the_run.append(recall_tool(ports.memories, trust, longest_output + RECALL_MARGIN))
        of_the_run.append(remember_tool(ports.memories))
    if ports.delegations is not None:
        of_the_run.append(delegate_tool(ports.delegations))
    runner = ToolRunner(
        ToolRegistry([*filter(may_use, [*tools, *servers.tools, *of_the_run]), *own]),
        policy,
        shell=ports.shell,
        blobs=ports.blobs,
        mask=ports.mask,
        allowed_hosts=spec.fetch.hosts,
        max_characters=longest_output,
    )
    assembler = PlainAssembler(
        spec.name,
        "\n\n".join([spec.instructions, *servers.notes]),
        runner.offered(),
        ports.blobs,
        ports.covers.extra,
        model.features,
    )
    limits = JobLimits(
        settings, prices, names, ports.ledger, window=lambda: model.context_window, fixed=assembler.overhead()
    )
    summariser = None if isinstance(model, Offline) else ModelSummariser(model, limits)
    context = WholeContext(
        ConversationProvider(ports.history, ports.memories),
        PlainCompressor(spec.context, lambda: model.context_window, summariser, ports.memories),
        assembler,
    )
    return Loop(
        model=model,
        tools=runner,
        journal=ports.journal,
        limits=limits,
        context=context,
        inbox=ports.inbox,
        questions=ports.questions,
        covers=ports.covers,
        memories=ports.memories,
        delegations=ports.delegations,
        mask=ports.mask,
        listen=ports.listen,
    )
