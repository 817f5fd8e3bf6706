"""How a goal comes about: from a message that asks for one."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.goals.records import GoalRequest, NewGoal, create_goal
from gofer.intake.routing import answering_agents
from gofer.settings import Settings
from gofer.store.encryption import conversation_key
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, seal_message
from gofer.store.tables import agents, messages
from gofer.vault.envelope import Vault

GOAL_MESSAGE = "goal"
"""The event of a message that asked for a goal: agents read it as talk, since the goal answers it."""
UNHEARD = (
    "No agent hears this conversation, so nobody can take a goal. An owner can choose one with /agent NAME."
)
MICROS = 1_000_000


def goal_of_message(
    connection: Connection, vault: Vault, settings: Settings, claim: Any, read: StoredMessage, text: str
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
) -> str:
    """The id of the goal of a message, made unless it is there; empty when no agent hears the conversation. Where
    several agents do, the goal asks which of them takes it."""
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
    ids = [agent_id for agent_id, _ in hearing]
    named = dict(connection.execute(select(agents.c.id, agents.c.name).where(agents.c.id.in_(ids))).all())
    several = tuple(named[each] for each in ids if each in named) if len(ids) > 1 else ()
    goal_id = create_goal(
        connection,
        vault,
        NewGoal(
            GoalRequest(text, message.author.name, message.external_id, message.facts, several),
            workspace_id=workspace_id,
            conversation_id=conversation_id,
            connection_id=read.connection_id,
            agent_id=ids[0],
            participant_id=hearing[0][1],
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
