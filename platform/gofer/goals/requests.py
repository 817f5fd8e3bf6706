"""How a goal comes about: from a message that asks for one, or from an agent that suggests it with consent."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select, update

from gofer.errors import Conflict, GoferError
from gofer.goals import records
from gofer.goals.records import GoalRequest, NewGoal, create_goal
from gofer.intake.routing import answering_agents
from gofer.jobs.notifications import JOBS, Signals
from gofer.jobs.queue import Claim
from gofer.runs.agent_files import SUGGEST_GOAL, TELL_GOAL, AgentFiles, in_force
from gofer.sanitize import defuse
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.store.encryption import conversation_key
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, seal_message
from gofer.store.tables import agents, messages
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer.vault.envelope import Vault

GOAL_MESSAGE = "goal"
"""The event of a message that asked for a goal: agents read it as talk, since the goal answers it."""
UNHEARD = (
    "No agent hears this conversation, so nobody can take a goal. An owner can choose one with /agent NAME."
)
ELSEWHERE = "{agent} runs elsewhere, so it plans no goals. Give the goal to an agent of Gofer's own."
MICROS = 1_000_000
MAX_LISTED = 5
"""Goals under way that a run's prompt lists."""


def agents_elsewhere(settings: Settings) -> frozenset[str]:
    """The names of the agents that somebody runs elsewhere, which take no goals."""
    known = in_force(AgentFiles.of(settings).look())
    return frozenset(spec.name for spec in known if spec.runtime is not None)


def goal_of_message(
    connection: Connection,
    vault: Vault,
    settings: Settings,
    claim: Any,
    read: StoredMessage,
    text: str,
    elsewhere: Collection[str] = (),
) -> str:
    """Make the goal that a message asks for, once; returns what to say if it cannot be made. `claim` says where."""
    made = make_goal(
        connection,
        vault,
        settings,
        read,
        text,
        workspace_id=claim.workspace_id,
        conversation_id=str(claim.conversation_id),
        elsewhere=elsewhere,
    )
    return "" if made else UNHEARD


def make_goal(
    connection: Connection,
    vault: Vault,
    settings: Settings,
    read: StoredMessage,
    text: str,
    *,
    workspace_id: str,
    conversation_id: str,
    elsewhere: Collection[str] = (),
) -> str:
    """The id of the goal of a message, made unless it is there; empty when no agent hears the conversation. Where
    several agents do, the goal asks which of them takes it. Raises Conflict when all of them run elsewhere."""
    lock_conversation(connection, conversation_id)
    message = read.message
    hearing = answering_agents(
        connection,
        message,
        workspace_id=workspace_id,
        connection_id=str(read.connection_id),
        conversation_id=conversation_id,
        seq=read.seq,
    )
    if not hearing:
        return ""
    takers = _takers(connection, hearing, elsewhere)
    several = tuple(name for _, _, name in takers) if len(takers) > 1 else ()
    agent_id, participant_id, _ = takers[0]
    goal_id = create_goal(
        connection,
        vault,
        NewGoal(
            GoalRequest(text, message.author.name, message.external_id, message.facts, several),
            workspace_id=workspace_id,
            conversation_id=conversation_id,
            connection_id=read.connection_id,
            agent_id=agent_id,
            participant_id=participant_id,
            asked_by=message.author.id,
            trust=read.trust.value,
            message_seq=read.seq,
            budget=round(settings.goal_dollars * MICROS),
            needs_approval=settings.goal_approval,
        ),
        most=settings.max_goals,
    )
    _keep_as_talk(connection, vault, conversation_id, read)
    return goal_id


def _takers(
    connection: Connection, hearing: Sequence[tuple[str, str]], elsewhere: Collection[str]
) -> list[tuple[str, str, str]]:
    """The agents that can take a goal: id, participant and name. Raises Conflict when all of them run elsewhere."""
    ids = [agent_id for agent_id, _ in hearing]
    named = dict(connection.execute(select(agents.c.id, agents.c.name).where(agents.c.id.in_(ids))).all())
    known = [
        (agent_id, participant, named[agent_id]) for agent_id, participant in hearing if agent_id in named
    ]
    found = [each for each in known if each[2] not in elsewhere]
    if not found:
        raise runs_elsewhere(known[0][2])
    return found


def runs_elsewhere(agent: str) -> Conflict:
    """Why an agent takes no goal."""
    return Conflict(ELSEWHERE.format(agent=agent))


def _keep_as_talk(connection: Connection, vault: Vault, conversation_id: str, read: StoredMessage) -> None:
    """Let agents read later what was asked for, without answering it a second time."""
    kept = dataclasses.replace(read.message, event=GOAL_MESSAGE, addressed=False)
    key = conversation_key(connection, vault, conversation_id)
    sealed = seal_message(key, conversation_id, read.seq, kept, read.trust, came_by=read.connection_id)
    connection.execute(
        update(messages)
        .where(messages.c.conversation_id == conversation_id, messages.c.seq == read.seq)
        .values(event=GOAL_MESSAGE, addressed=False),
        {"sealed": sealed},
    )


NARROWED = (
    "This run has read strangers' text, so it neither suggests goals nor speaks to one. A person can, with the command "
    "for goals."
)


class SuggestionArguments(Arguments):
    text: str = Field(
        min_length=1, max_length=4000, description="What is wanted, as the person would say it."
    )


class GoalWordsArguments(Arguments):
    goal: str = Field(max_length=60, description="The goal's id.")
    text: str = Field(min_length=1, max_length=4000, description="What the person said about it.")


@dataclass(frozen=True, slots=True)
class GoalTools:
    """The tools about goals of an agent's own runs. Worker runs have none of them."""

    database: Database
    vault: Vault
    settings: Settings
    signals: Signals

    async def of_run(self, claim: Claim, asker: StoredMessage) -> list[Tool[Any]]:
        """To suggest a goal; and while goals are under way here, to pass words on to one."""
        live = await self.database.read(partial(_under_way, vault=self.vault, claim=claim))
        return [self._suggesting(claim, asker), *([self._telling(claim, asker, live)] if live else [])]

    def _suggesting(self, claim: Claim, asker: StoredMessage) -> Tool[Any]:
        async def suggest(given: SuggestionArguments, context: ToolContext) -> ToolResult:
            if context.narrowed:
                return ToolResult(NARROWED, is_error=True)
            verb = partial(_suggest, vault=self.vault, settings=self.settings, claim=claim, asker=asker)
            try:
                await self.database.write(partial(verb, text=given.text))
            except GoferError as error:
                return ToolResult(str(error), is_error=True)
            self.signals.wake(JOBS)
            return ToolResult(
                "They are asked. If they agree, it is planned and done without you.", progress=True
            )

        return Tool(
            SUGGEST_GOAL,
            "Suggest to make something a goal: it is then planned, done in several tasks side by side, and reported "
            "when it is done. The person is asked first. For what takes many steps or hours, not for what you can do "
            "now.",
            SuggestionArguments,
            suggest,
            Tier.WRITE,
        )

    def _telling(self, claim: Claim, asker: StoredMessage, live: Sequence[tuple[str, str]]) -> Tool[Any]:
        async def tell(given: GoalWordsArguments, context: ToolContext) -> ToolResult:
            # It would speak as the person, and a goal's tasks reach further than this run.
            if context.narrowed:
                return ToolResult(NARROWED, is_error=True)
            if given.goal not in dict(live):
                return ToolResult(f"There is no goal {given.goal!r} under way here.", is_error=True)
            author = asker.message.author
            verb = partial(records.tell, vault=self.vault, goal_id=given.goal, text=given.text, by=author.id)
            try:
                await self.database.write(partial(verb, name=author.name, trust=asker.trust.value))
            except GoferError as error:
                return ToolResult(str(error), is_error=True)
            self.signals.wake(JOBS)
            return ToolResult("Its planner hears that next.", progress=True)

        under_way = "; ".join(f"{goal_id}: {text}" for goal_id, text in live)
        return Tool(
            TELL_GOAL,
            "Pass on what a person says about a goal that is under way here, when they want something different of it. "
            f"Under way: {under_way}",
            GoalWordsArguments,
            tell,
            Tier.WRITE,
        )


def _under_way(connection: Connection, vault: Vault, claim: Claim) -> list[tuple[str, str]]:
    """Ids and first words of the goals under way in a conversation."""
    found = records.goals_in(connection, str(claim.conversation_id), live=True, limit=MAX_LISTED)
    return [
        (goal.id, defuse(" ".join(records.request_of(connection, vault, goal).text.split())[:100]))
        for goal in found
    ]


def _suggest(
    connection: Connection, vault: Vault, settings: Settings, claim: Claim, asker: StoredMessage, text: str
) -> str:
    message = asker.message
    request = GoalRequest(text, message.author.name, message.external_id, message.facts, consent=True)
    new = NewGoal(
        request,
        workspace_id=claim.workspace_id,
        conversation_id=str(claim.conversation_id),
        connection_id=asker.connection_id,
        agent_id=str(claim.agent_id),
        participant_id=str(claim.participant_id),
        asked_by=message.author.id,
        trust=asker.trust.value,
        budget=round(settings.goal_dollars * MICROS),
        needs_approval=settings.goal_approval,
    )
    return create_goal(connection, vault, new, most=settings.max_goals)
